"""Questions with one right answer: made ones, or the rows of a file."""
