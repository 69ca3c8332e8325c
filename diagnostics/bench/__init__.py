"""How good is the diagnosis? CollapseBench."""
