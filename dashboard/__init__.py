"""Streamlit and plotly over the store: watch, replay, diagnose and steer runs."""
