"""How is one trajectory shown?"""
