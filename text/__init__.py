"""How values are read and written as text: no more than that, so every package may use it."""
