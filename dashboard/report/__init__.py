"""One file that tells what happened to a run."""
