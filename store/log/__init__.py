"""How does a step get onto the disk, and how is it proven to be there?"""
