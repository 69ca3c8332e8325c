"""How values and replies are read and written as text: no more, so every package may use it."""
