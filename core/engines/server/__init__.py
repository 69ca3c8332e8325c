"""How are replies sampled by a server that speaks HTTP?"""
