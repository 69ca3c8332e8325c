"""How does vLLM sample: in this process, or in a server process beside it?"""
