"""Which published findings about collapse hold for the shipped policies, and which do not?"""
