"""What measurements draw: the same whenever a step is measured again."""

from __future__ import annotations

import numpy as np

SEED = 20_260
SCORED_EPISODES = 2
"""The stream of the episodes that a recorder has scored."""


def generator(*indices: int) -> np.random.Generator:
    """Draws that are a function of these numbers alone, such as a step and a stream in it."""
    return np.random.default_rng([SEED, *indices])
