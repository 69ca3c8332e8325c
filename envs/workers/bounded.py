"""Episodes within a time limit, in this process or in a worker: what fails ends its episode."""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from ..base import Observation, Tool, shorten
from ..turns.turn import FAILED, TurnEnv, TurnResult, failed_turn

T = TypeVar("T")


class ActionTimeoutError(Exception):
    """An action or a reset took longer than it may."""


def call_within(function: Callable[[], T], seconds: float | None, what: str) -> T:
    """The result of `function`, or `ActionTimeoutError` after `seconds`; None calls it right here.

    The call runs in a daemon thread: Python cannot stop it, so a call that never returns is
    abandoned, not ended, and does not keep the process alive.
    """
    if seconds is None:
        return function()
    answer: Future[T] = Future()

    def run() -> None:
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            answer.set_exception(error)

    threading.Thread(target=run, name="echoscope-action", daemon=True).start()
    if not wait([answer], seconds).done:
        raise ActionTimeoutError(f"{what} took more than {seconds:g} s")
    return answer.result()


class WorkerDiedError(Exception):
    """An environment is gone, alone or with the process in which it lived."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a reset gave, in a form that crosses processes."""

    observation: Observation
    instructions: str
    tools: tuple[Tool, ...]
    task_key: str | None
    error: str | None


def start(turns: TurnEnv, seed: int, noise_seed: int) -> Started:
    """Begin an episode of `turns`."""
    observation = turns.reset(seed, noise_seed)
    return Started(
        observation=observation,
        instructions="" if turns.error is not None else turns.instructions(),
        tools=turns.tools,
        task_key=turns.task_key,
        error=turns.error,
    )


class BoundedTurns(TurnEnv):
    """Turns of which each takes at most `limit_s` seconds, wherever they are carried out.

    After a timeout, or when the process of the environment has died, the episode ends, with a
    sentence that says so; the next reset builds a new world.

    Args:
        name: of the environment, for messages.
        limit_s: seconds of one reset or one turn; None for no limit.
    """

    def __init__(self, name: str, limit_s: float | None) -> None:
        self.name = name
        self.limit_s = limit_s
        self._started: Started | None = None
        self._failure: str | None = None
        self._has_timed_out = False
        self._seen = Observation(text="")

    @property
    def tools(self) -> tuple[Tool, ...]:
        return () if self._started is None else self._started.tools

    @property
    def error(self) -> str | None:
        if self._failure is not None:
            return self._failure
        return None if self._started is None else self._started.error

    @property
    def task_key(self) -> str | None:
        return None if self._started is None else self._started.task_key

    @property
    def num_tasks(self) -> int | None:
        number: int | None = self._perform("count")
        return number

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._started = self._failure = None
        try:
            self._started = self._perform("reset", seed, noise_seed)
        except (ActionTimeoutError, WorkerDiedError) as error:
            self._fail("the reset", error)
            self._seen = Observation(text=f"{FAILED}{self._failure}")
        else:
            self._seen = self._started.observation
        return self._seen

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        if self._failure is None:
            try:
                result: TurnResult = self._perform("step", list(actions), is_well_formed)
            except (ActionTimeoutError, WorkerDiedError) as error:
                self._fail("the turn", error)
            else:
                self._seen = result.observation
                return result
        reason = "timeout" if self._has_timed_out else "env_error"
        return failed_turn(self._seen, self._failure, stop_reason=reason, is_valid=is_well_formed)

    def instructions(self) -> str:
        return "" if self._started is None else self._started.instructions

    @abstractmethod
    def _perform(self, what: str, *args: Any) -> Any:
        """Carry out `count`, `reset` or `step`.

        Raises:
            ActionTimeoutError: it took more than `limit_s`; the world is given up.
            WorkerDiedError: the world is gone.
        """

    def _fail(self, what: str, error: Exception) -> None:
        self._has_timed_out = isinstance(error, ActionTimeoutError)
        if self._has_timed_out:
            self._failure = (
                f"{self.name}: {what} took more than {self.limit_s:g} s (collection.env_timeout_s)"
            )
        else:
            self._failure = f"{self.name}: {shorten(str(error), 300)}"


class ThreadTurns(BoundedTurns):
    """Bounded turns in this process: a call that takes too long is left behind in its thread."""

    def __init__(self, name: str, limit_s: float | None, build: Callable[[], TurnEnv]) -> None:
        super().__init__(name, limit_s)
        self._build = build
        self._turns: TurnEnv | None = build()

    def close(self) -> None:
        if self._turns is not None:
            self._turns.close()

    def _perform(self, what: str, *args: Any) -> Any:
        turns = self._turns = self._build() if self._turns is None else self._turns
        try:
            return call_within(partial(perform, turns, what, *args), self.limit_s, what)
        except ActionTimeoutError:
            self._turns = None
            raise


def perform(turns: TurnEnv, what: str, *args: Any) -> Any:
    """`count` tasks, `reset`, or `step`, on the turns themselves; results can be pickled."""
    if what == "count":
        return turns.num_tasks
    if what == "reset":
        return start(turns, *args)
    return turns.step_turn(*args)
