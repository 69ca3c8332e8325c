"""One script per page; Streamlit runs them."""
