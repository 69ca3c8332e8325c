"""How does a policy learn the format before RL?"""
