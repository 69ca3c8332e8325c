"""What worlds have in common that draw one task from `seed` and play it to an end."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping

import numpy as np

from ..base import Observation, StepResult, TextEnv, check_seed, no_info, prefixed


class TaskEnv(TextEnv):
    """A world that knows whether its episode is over and its task solved.

    Subclasses say what an action does; results and refusals are put together here.
    """

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether the episode has ended: nothing is played any more."""

    @property
    @abstractmethod
    def is_solved(self) -> bool | None:
        """Whether the task is solved by now; None where the world cannot tell."""

    @abstractmethod
    def observe(self) -> Observation:
        """The state as the policy is shown it."""

    def info(self) -> Mapping[str, float]:
        """Numbers about the state, for `StepResult.info`."""
        return no_info()

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


def task_generator(seed: int, noise_seed: int) -> np.random.Generator:
    """The generator of a task, for worlds whose transitions draw nothing.

    Raises:
        EnvParamsError: a seed is out of range.
    """
    check_seed("noise_seed", noise_seed)
    return np.random.default_rng(check_seed("seed", seed))
