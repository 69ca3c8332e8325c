"""Episodes within a time limit, in this process or in a worker: what fails ends its episode."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, TypeVar

from ..base import Observation, shorten
from ..pool import turns_of
from ..settings import EnvGroup
from ..turns.turn import Opening, TurnEnv, TurnResult, failed_opening, failed_turn
from .threads import in_thread

T = TypeVar("T")


class ActionTimeoutError(Exception):
    """An action or a reset took longer than it may."""


def call_within(function: Callable[[], T], seconds: float | None) -> T:
    """The result of `function`, or `ActionTimeoutError` after `seconds`; None calls it right here.

    A call that never returns is abandoned, not ended: see `in_thread`.
    """
    if seconds is None:
        return function()
    answer = in_thread("echoscope-call", function)
    if not wait([answer], seconds).done:
        raise ActionTimeoutError
    return answer.result()


class WorkerDiedError(Exception):
    """An environment is gone, alone or with the process in which it lived."""


class BoundedTurns(TurnEnv):
    """Turns of which each takes at most `limit_s` seconds, wherever they are carried out.

    After a timeout, or when the process of the environment has died, the episode ends, with a
    sentence that says so; the next reset builds a new world.

    Args:
        limit_s: seconds of one reset or one turn; None for no limit.
    """

    def __init__(self, group: EnvGroup, limit_s: float | None) -> None:
        self.group = group
        self.limit_s = limit_s
        self._failure: str | None = None
        self._has_timed_out = False
        self._seen = Observation(text="")

    @property
    def num_tasks(self) -> int | None:
        number: int | None = self._perform("num_tasks")
        return number

    def reset(self, seed: int, noise_seed: int) -> Opening:
        self._failure = None
        try:
            opening: Opening = self._perform("reset", seed, noise_seed)
        except (ActionTimeoutError, WorkerDiedError) as error:
            opening = failed_opening(self._fail("the reset", error))
        self._seen = opening.observation
        return opening

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        if self._failure is None:
            try:
                result: TurnResult = self._perform("step_turn", list(actions), is_well_formed)
            except (ActionTimeoutError, WorkerDiedError) as error:
                self._fail("the turn", error)
            else:
                self._seen = result.observation
                return result
        return failed_turn(
            self._seen,
            self._failure,
            stop_reason="timeout" if self._has_timed_out else "env_error",
            is_valid=is_well_formed,
        )

    @abstractmethod
    def _perform(self, what: str, *args: Any) -> Any:
        """Carry out what a `TurnEnv` has under this name.

        Raises:
            ActionTimeoutError: it took more than `limit_s`; the world is given up.
            WorkerDiedError: the world is gone.
        """

    def _fail(self, what: str, error: Exception) -> str:
        self._has_timed_out = isinstance(error, ActionTimeoutError)
        reason = shorten(str(error), 300)
        if self._has_timed_out:
            reason = f"{what} took more than {self.limit_s:g} s (collection.env_timeout_s)"
        self._failure = f"{self.group.env}: {reason}"
        return self._failure


class ThreadTurns(BoundedTurns):
    """Bounded turns in this process: a call that takes too long is left behind in its thread."""

    def __init__(self, group: EnvGroup, limit_s: float | None) -> None:
        super().__init__(group, limit_s)
        self._turns: TurnEnv | None = turns_of(group)

    def close(self) -> None:
        if self._turns is not None:
            self._turns.close()

    def _perform(self, what: str, *args: Any) -> Any:
        turns = self._turns = turns_of(self.group) if self._turns is None else self._turns
        try:
            return call_within(partial(perform, turns, what, *args), self.limit_s)
        except ActionTimeoutError:
            self._turns = None
            raise


def perform(turns: TurnEnv, what: str, *args: Any) -> Any:
    """`num_tasks`, or what the method of this name returns; it can be pickled."""
    return turns.num_tasks if what == "num_tasks" else getattr(turns, what)(*args)
