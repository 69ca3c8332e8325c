"""Which files stand below a path, what do they hold, and what was added to them?"""
