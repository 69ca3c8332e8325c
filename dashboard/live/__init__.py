"""What changes on an open page by itself?"""
