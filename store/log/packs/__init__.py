"""Packs: which count, how one is written, and what is left of a damaged one."""
