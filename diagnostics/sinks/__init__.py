"""How does a run also appear in W&B, TensorBoard and trackio?"""
