"""What can be found out before a run, or after it?"""
