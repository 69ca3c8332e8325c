"""How do the rollouts of another trainer become a run of ours?"""
