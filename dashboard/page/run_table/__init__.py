"""The parts of the page Runs: its controls, its table, the curves beside it, what is noted."""
