"""A world that takes its time, so that somebody can press a key in between."""

from __future__ import annotations

import contextlib
import sys
import time

from echoscope.envs.base import Observation
from echoscope.envs.worlds.bandit import Bandit


class SlowBandit(Bandit):
    """Says on the terminal that an episode begins, and then takes half a second to begin it."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        sys.stdout.write("the bandit is slow\n")
        sys.stdout.flush()
        time.sleep(0.5)
        return super().reset(seed, noise_seed)


class HangingBandit(Bandit):
    """Plays one step of eight episodes, then never answers again, and swallows what it can."""

    num_begun = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        HangingBandit.num_begun += 1
        if HangingBandit.num_begun > 8:
            sys.stdout.write("the bandit hangs\n")
            sys.stdout.flush()
            while True:
                with contextlib.suppress(Exception):
                    time.sleep(3600)
        return super().reset(seed, noise_seed)


class ClosedBandit(Bandit):
    """Begins eight episodes, and none after that."""

    num_begun = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        ClosedBandit.num_begun += 1
        if ClosedBandit.num_begun > 8:
            raise OSError("no data")
        return super().reset(seed, noise_seed)
