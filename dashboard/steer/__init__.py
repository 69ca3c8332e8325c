"""How does a page change a run?"""
