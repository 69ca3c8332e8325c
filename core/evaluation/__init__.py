"""Evaluations: who plays which tasks, how they are played and stored, and what was found."""
