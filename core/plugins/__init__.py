"""How does the user's own code take part in training: signatures, calls, checks?"""
