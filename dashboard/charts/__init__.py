"""How are curves drawn?"""
