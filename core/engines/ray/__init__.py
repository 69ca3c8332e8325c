"""Engines as actors of Ray: prompts are split over them, and a lost one is replaced."""
