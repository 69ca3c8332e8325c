"""How is a stored run asked? SQL over its files, and records made of rows."""
