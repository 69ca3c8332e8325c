"""The environment: a corridor without an end, and a door in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echoscope.envs.base import EnvSpec, Observation, StepResult, TextEnv, hash_task, prefixed
from echoscope.envs.params import require

MOVES = {"left": -1, "right": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class CorridorConfig:
    reach: int = 3
    """The door is at most so many cells away."""

    def __post_init__(self) -> None:
        require(self.reach >= 1, f"reach is {self.reach}, but must be at least 1")


class Corridor(TextEnv):
    """Walk to the door.

    Description: A player stands in a corridor without an end, a few cells from a door.
    Observation: How far the door is, and on which side.
    Actions: left, right.
    Rewards: 1 at the door, else 0.
    Episode end: The player is at the door.
    Success: The same.
    Seeds: `seed` draws the distance and the side; `noise_seed` is not used.
    Requires: Nothing beyond the base installation.
    Example: `Corridor(CorridorConfig()).reset(seed=0, noise_seed=0)`
    """

    spec = EnvSpec(
        id="corridor",
        config_type=CorridorConfig,
        max_turns=4,
        max_actions_per_turn=1,
        description="Walk to the door.",
    )

    def __init__(self, config: CorridorConfig) -> None:
        super().__init__(config)
        self._reach = config.reach

    def reset(self, seed: int, noise_seed: int) -> Observation:
        rng = np.random.default_rng(seed)
        self._door = int(rng.integers(1, self._reach + 1)) * (1 if rng.random() < 0.5 else -1)
        self._player = 0
        return self._look()

    def step(self, action: str) -> StepResult:
        move = MOVES.get(action.strip().lower(), 0)
        is_valid = move != 0 and self._player != self._door
        if is_valid:
            self._player += move
        is_over = self._player == self._door
        seen = self._look() if is_valid else prefixed(self.invalid_notice(action), self._look())
        return StepResult(
            observation=seen,
            reward=float(is_over and is_valid),
            terminated=is_over,
            success=is_over,
            is_valid=is_valid,
            is_effective=is_valid,
            info={},
        )

    def instructions(self) -> str:
        return "Walk to the door. Actions: left, right."

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def solve(self) -> list[str]:
        away = self._door - self._player
        return ["right" if away > 0 else "left"] * abs(away)

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._door)

    def _look(self) -> Observation:
        away = self._door - self._player
        if not away:
            return Observation(text="You are at the goal.")
        return Observation(text=f"Goal {abs(away)} {'right' if away > 0 else 'left'}.")
