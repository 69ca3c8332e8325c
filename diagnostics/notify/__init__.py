"""Who is told of a collapse, and how?"""
