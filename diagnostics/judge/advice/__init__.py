"""What to do about what the alarms found: the situation, its causes, one action."""
