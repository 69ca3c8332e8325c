"""Does an environment keep its contract?"""
