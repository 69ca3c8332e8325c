"""How are pickles read without running them?"""
