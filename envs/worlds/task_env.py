"""What worlds have in common that draw one task from `seed` and play it to an end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Generic, Protocol, TypeVar

import numpy as np

from echoscope.text.pictures import card_frame

from ..base import Observation, StepResult, TextEnv, check_seed, prefixed

C = TypeVar("C")
"""The configuration of a world."""
T = TypeVar("T")


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

    def solve(self) -> list[str] | None:
        if self.is_over:
            return [] if self.is_solved else None
        return self.plan()

    def plan(self) -> list[str] | None:
        """What `solve` gives before the end of the episode."""
        return None

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

    `begin` calls `pose`. The task stands in the first observation only.
    """

    title: ClassVar[str]
    """Of the frame."""
    max_framed_lines: ClassVar[int | None] = None
    """Of the task in the frame; None for all."""
    is_solved = False
    _num_attempts = 0
    _asked = _solution = ""

    def pose(self, asked: str, solution: str) -> None:
        """A task begins, which `solution` solves; "" where nobody knows what does."""
        self._num_attempts, self.is_solved = 0, False
        self._asked, self._solution = asked, solution

    @abstractmethod
    def judge(self, action: str) -> tuple[float, bool, str] | None:
        """The reward of an attempt, whether it solves the task, and what is told about it.

        None for an action that is no attempt.
        """

    def step(self, action: str) -> StepResult:
        judged = None if self.is_over else self.judge(action)
        if judged is None:
            return self.refused(action)
        self._num_attempts += 1
        reward, self.is_solved, news = judged
        return self.result(reward, self.observe(news))

    def observe(self, news: str = "") -> Observation:
        """The task, or what an attempt gave."""
        lines = self._asked.splitlines()[: self.max_framed_lines]
        frame = card_frame(self.title, [*lines, news] if news else lines)
        return Observation(text=news or self._asked, frame=frame)

    def plan(self) -> list[str] | None:
        return [self._solution] if self._solution else None

    @property
    def is_over(self) -> bool:
        return self.is_solved or self._num_attempts >= self._config.attempts


def drawn(seed: int, number: int) -> int:
    """One of so many tasks, evenly."""
    return int(np.random.default_rng(seed).integers(number))


def one_of(rng: np.random.Generator, items: Sequence[T]) -> T:
    """One of some items, evenly."""
    return items[int(rng.integers(len(items)))]


def some_of(rng: np.random.Generator, items: Sequence[T], number: int) -> list[T]:
    """So many different ones of some items, in random order."""
    return [items[int(index)] for index in rng.choice(len(items), size=number, replace=False)]
