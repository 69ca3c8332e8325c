"""Puzzles for one player: numbers, Sudoku, 2048, the pocket cube."""
