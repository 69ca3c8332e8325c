"""What happens inside one turn: actions, limits, penalties, failures."""
