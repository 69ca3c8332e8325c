"""What a run remembers, and the words every other part uses for it."""
