"""Where do a step's trajectories come from?"""
