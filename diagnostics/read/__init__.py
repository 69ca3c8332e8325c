"""How is a run read that another trainer wrote?"""
