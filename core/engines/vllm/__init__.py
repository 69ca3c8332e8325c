"""How does vLLM sample in a server process beside this one?"""
