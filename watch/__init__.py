"""How is the growing folder or log of another trainer followed?"""
