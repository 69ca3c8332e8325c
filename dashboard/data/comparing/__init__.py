"""Runs side by side: which are one group, how far groups differ, which settings matter, and which
tasks they solved."""
