"""The worlds that ship, in families."""
