"""A world that takes its time, so that somebody can press a key in between."""

from __future__ import annotations

import sys
import time

from echoscope.envs.bandit import Bandit
from echoscope.envs.base import Observation


class SlowBandit(Bandit):
    """Says on the terminal that an episode begins, and then takes half a second to begin it."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        sys.stdout.write("the bandit is slow\n")
        sys.stdout.flush()
        time.sleep(0.5)
        return super().reset(seed, noise_seed)
