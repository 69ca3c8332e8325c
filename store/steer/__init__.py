"""How is a run steered? Its mailbox, and which live settings held when."""
