"""What can be set, and how is it read?"""
