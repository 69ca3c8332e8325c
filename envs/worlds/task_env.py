"""What worlds have in common that draw one task from `seed` and play it to an end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Generic, Protocol, TypeVar

import numpy as np

from ..base import Observation, StepResult, TextEnv, check_seed, prefixed

C = TypeVar("C")
"""The configuration of a world."""


class TaskEnv(TextEnv, Generic[C]):
    """A world that knows whether its episode is over and its task solved.

    Subclasses say what an action does; results and refusals are put together here. `is_over` and
    `is_solved` may be attributes as well.
    """

    def __init__(self, config: C | None = None) -> None:
        self._config: C = self.spec.config_type() if config is None else config
        super().__init__(self._config)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self.begin(check_seed("seed", seed), check_seed("noise_seed", noise_seed))
        return self.observe()

    @abstractmethod
    def begin(self, seed: int, noise_seed: int) -> None:
        """Draw the task and stand at its start."""

    @property
    def is_over(self) -> bool:
        """Whether the episode has ended: nothing is played any more. By default once solved."""
        return bool(self.is_solved)

    @property
    @abstractmethod
    def is_solved(self) -> bool | None:
        """Whether the task is solved by now; None where the world cannot tell."""

    @abstractmethod
    def observe(self) -> Observation:
        """The state as the policy is shown it."""

    def info(self) -> Mapping[str, float]:
        """Numbers about the state, for `StepResult.info`."""
        return {}

    def result(
        self,
        reward: float = 0.0,
        observation: Observation | None = None,
        *,
        is_valid: bool = True,
        is_effective: bool = True,
    ) -> StepResult:
        """What an action did, with the state after it; `observation` is the state where None."""
        return StepResult(
            observation=self.observe() if observation is None else observation,
            reward=reward,
            terminated=self.is_over,
            success=self.is_solved,
            is_valid=is_valid,
            is_effective=is_effective,
            info=self.info(),
        )

    def refused(self, action: str) -> StepResult:
        """The result of an action that is invalid here: the notice before the state."""
        observation = prefixed(self.invalid_notice(action), self.observe())
        return self.result(0.0, observation, is_valid=False, is_effective=False)


class _Attempted(Protocol):
    @property
    def attempts(self) -> int: ...


A = TypeVar("A", bound=_Attempted)


class AttemptEnv(TaskEnv[A]):
    """A world in which one action may solve the task, and which has `attempts` in its settings.

    `begin` calls `pose`; `step` counts an attempt and notes whether it solved the task.
    """

    _num_attempts = 0
    is_solved = False
    _solution = ""
    """An action that solves the task; empty where nobody knows one."""

    def pose(self, solution: str) -> None:
        """A task begins, which `solution` solves."""
        self._num_attempts, self.is_solved, self._solution = 0, False, solution

    def solve(self) -> list[str] | None:
        """What solves the task; None once no attempt is left, or where nobody knows it."""
        if self.is_solved:
            return []
        return [self._solution] if self._solution and not self.is_over else None

    @property
    def is_over(self) -> bool:
        return self.is_solved or self._num_attempts >= self._config.attempts


def drawn(seed: int, number: int) -> int:
    """One of so many tasks, evenly."""
    return int(np.random.default_rng(seed).integers(number))
