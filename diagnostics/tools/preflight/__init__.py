"""Is a run worth starting? Trial rollouts of its starting policy, counted and judged."""
