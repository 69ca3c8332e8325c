"""StarPO training: rollouts, batches, losses, the loop."""
