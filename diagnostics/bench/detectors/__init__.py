"""Alerts beside ours: each file holds entries of CollapseBench, `own.py` reads yours."""
