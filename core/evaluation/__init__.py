"""Evaluations: who plays which tasks, how they are played and stored, and what was found."""

SEED = 1_000_000
"""Draws the tasks where nobody names another seed: the same for everyone, and no training's own,
whose best checkpoint may have been chosen by its evaluation's tasks."""
