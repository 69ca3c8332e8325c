"""How does another trainer's loop write a run, and obey it?"""
