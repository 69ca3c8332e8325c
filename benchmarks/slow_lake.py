"""A frozen lake whose every reset and action waits, as a world behind a network does."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass

from echoscope.envs.base import Observation, StepResult
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake, FrozenLakeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowLakeConfig(FrozenLakeConfig):
    """`wait_s`: seconds of each reset and action."""

    wait_s: float = 0.02


class SlowLake(FrozenLake):
    """FrozenLake that waits."""

    spec = dataclasses.replace(
        FrozenLake.spec,
        id="slow_lake",
        config_type=SlowLakeConfig,
    )

    def __init__(self, config: SlowLakeConfig) -> None:
        self._wait_s = config.wait_s
        super().__init__(config)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        time.sleep(self._wait_s)
        return super().reset(seed, noise_seed)

    def step(self, action: str) -> StepResult:
        time.sleep(self._wait_s)
        return super().step(action)
