"""Worlds behind HTTP: the client that plays one, the server that has them."""
