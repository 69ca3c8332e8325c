"""How do trajectories change the weights?"""
