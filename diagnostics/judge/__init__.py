"""Is the run collapsing, since when, and what should be done?"""
