"""Worlds on a board of squares."""
