"""How does a run start, go on, stop, and branch?"""
