"""Frozen lakes that take their time, hang, or take their process with them."""

from __future__ import annotations

import os
import time

import numpy as np

from echoscope.envs.base import Observation, StepResult
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake


def is_chosen(noise_seed: int) -> bool:
    """About a quarter of the episodes."""
    return noise_seed >> 2 & 3 == 1


class WaitingLake(FrozenLake):
    """Sleeps up to 4 ms before it answers; how long depends on the episode's noise alone."""

    noise_seed = 0
    num_tasks = 100_000  # declared, so that nobody counts them by asking

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self.noise_seed = noise_seed
        self._pauses = np.random.default_rng(noise_seed)
        time.sleep(self._pauses.uniform(0, 0.004))
        return super().reset(seed, noise_seed)

    def step(self, action: str) -> StepResult:
        time.sleep(self._pauses.uniform(0, 0.004))
        return super().step(action)


class HangingLake(WaitingLake):
    """Chosen episodes never answer, whatever the reply."""

    def invalid_notice(self, action: str) -> str:
        if is_chosen(self.noise_seed):
            time.sleep(3600)
        return super().invalid_notice(action)


class SleepyLake(WaitingLake):
    """Never begins a chosen episode."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        if is_chosen(noise_seed):
            time.sleep(3600)
        return super().reset(seed, noise_seed)


class InterruptingLake(WaitingLake):
    """Raises what Ctrl-C raises, in place of any answer."""

    def step(self, action: str) -> StepResult:
        raise KeyboardInterrupt


class DyingLake(WaitingLake):
    """Chosen episodes end their process, as a crash in C code would."""

    def invalid_notice(self, action: str) -> str:
        if is_chosen(self.noise_seed):
            os._exit(7)
        return super().invalid_notice(action)


class DeadLake(WaitingLake):
    """No process survives its making."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        os._exit(7)
