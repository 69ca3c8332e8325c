"""Training of CureBench: see `__main__.py`."""
