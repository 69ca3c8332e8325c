"""Search: the index that worlds share, and questions that are answered by searching."""
