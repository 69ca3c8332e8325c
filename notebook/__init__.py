"""What does a person at a Python prompt get of a run: a card, tables, figures, one episode?"""
