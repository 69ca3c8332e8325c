"""What a metric did: its observations, its level, its changes, and since when."""
