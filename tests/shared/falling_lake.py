"""A lake that fails: on some tasks before it begins, on others at the second action."""

from __future__ import annotations

from echoscope.envs.base import Observation, StepResult
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake


class FallingLake(FrozenLake):
    """Of every three tasks one has no lake, and of one the ice breaks."""

    kind = 0
    num_moves = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self.kind, self.num_moves = seed // 4 % 3, 0
        if self.kind == 0:
            raise OSError("there is no lake")
        return super().reset(seed, noise_seed)

    def step(self, action: str) -> StepResult:
        self.num_moves += 1
        if self.kind == 1 and self.num_moves == 2:
            raise OSError("the ice broke")
        return super().step(action)
