"""How do environments run beside the sampling: in threads, in processes, within a time limit?"""
