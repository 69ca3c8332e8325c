"""Which groups train?"""
