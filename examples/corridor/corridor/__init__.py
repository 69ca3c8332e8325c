"""A world and a learning algorithm of one's own, for Echoscope."""
