"""Which files are written anew as JSON lines before they are read?"""
