"""From actions to turns: limits, penalties and failures, each in a layer of its own.

    TurnLimit( EndOnInvalid( FormatPenalty( ActionLimit( TurnRunner( TextEnv )))))

`wrap` builds the stack that `TurnSettings` describes. The layers share one small interface
(`TurnEnv`); each does one thing to the `TurnResult` that passes through it. The world itself knows
nothing of limits.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from .base import (
    EnvParamsError,
    Observation,
    StepResult,
    TextEnv,
    no_info,
    normalise,
    prefixed,
    shorten,
)

T = TypeVar("T")
STOP_REASONS = frozenset(
    {"terminated", "max_turns", "max_actions", "parse_failed", "env_error", "timeout"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What one reply did to the world.

    `observation` is the next one (the final one if the episode ended). `actions` are those that
    were executed, in order, in the environment's own spelling. `reward` is the environment's, the
    sum over them; `format_penalty` (<= 0) is apart from it. `is_valid`: well formed, and every
    action understood. `is_effective`: some action changed the world. `stop_reason` is None while
    the episode goes on. `success` is False until the task is solved, and None where the world
    cannot tell or failed. `info` is that of the last action the world answered. `error` says what
    failed after "env_error" and "timeout".
    """

    observation: Observation
    actions: tuple[str, ...]
    reward: float
    format_penalty: float
    is_valid: bool
    is_effective: bool
    terminated: bool
    stop_reason: str | None
    success: bool | None
    info: Mapping[str, float] = field(default_factory=no_info)
    error: str | None = None

    def __post_init__(self) -> None:
        if self.stop_reason is not None and self.stop_reason not in STOP_REASONS:
            raise ValueError(
                f"stop_reason is {self.stop_reason!r}, but must be one of {sorted(STOP_REASONS)}"
            )
        if self.terminated != (self.stop_reason == "terminated") or self.format_penalty > 0:
            raise ValueError(
                f"terminated={self.terminated} does not go with stop_reason={self.stop_reason!r}, "
                f"or format_penalty={self.format_penalty} is positive"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """Limits and penalties of one episode.

    `max_actions` counts executed actions over the whole episode (None: no limit).
    `format_penalty` (<= 0) falls due once per turn whose reply is malformed, has no action, or has
    an invalid one. `end_on_invalid` ends the episode at a turn in which no action was valid.
    `action_timeout_s` bounds one action (None: no bound, and no thread).
    """

    max_turns: int
    max_actions_per_turn: int
    max_actions: int | None = None
    format_penalty: float = -0.1
    end_on_invalid: bool = False
    action_timeout_s: float | None = None

    def __post_init__(self) -> None:
        for name in ("max_turns", "max_actions_per_turn", "max_actions"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise EnvParamsError(f"{name} is {value}, but must be at least 1")
        if not self.format_penalty <= 0:
            raise EnvParamsError(f"format_penalty is {self.format_penalty}, but must be <= 0")
        if self.action_timeout_s is not None and not self.action_timeout_s > 0:
            raise EnvParamsError(f"action_timeout_s is {self.action_timeout_s}, but must be > 0")


class TurnEnv(ABC):
    """A world seen turn by turn."""

    @abstractmethod
    def reset(self, seed: int, noise_seed: int) -> Observation:
        """Start an episode and return what the first prompt shows."""

    @abstractmethod
    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        """Carry out the actions of one reply. Nothing an environment does is raised here."""

    @abstractmethod
    def instructions(self) -> str:
        """The rules and the limits."""

    @abstractmethod
    def close(self) -> None:
        """Release the world."""


class TurnLayer(TurnEnv):
    """A layer that passes everything on; subclasses change what they are named after."""

    def __init__(self, inner: TurnEnv) -> None:
        self.inner = inner

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return self.inner.reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        return self.inner.step_turn(actions, is_well_formed)

    def instructions(self) -> str:
        return self.inner.instructions()

    def close(self) -> None:
        self.inner.close()


class TurnRunner(TurnEnv):
    """The innermost layer: runs a reply's actions on the world and turns failures into data.

    After an exception or a timeout the world's state is unknown: the episode ends, and the next
    `reset` builds a new world with `build`.
    """

    def __init__(
        self,
        build: Callable[[], TextEnv],
        *,
        max_actions_per_turn: int,
        action_timeout_s: float | None = None,
    ) -> None:
        self._build = build
        self._env = build()
        self._max_actions = max_actions_per_turn
        self._timeout_s = action_timeout_s
        self._state = Observation(text="")
        self._is_broken = False
        self._has_timed_out = False
        self._error: str | None = None

    @property
    def env(self) -> TextEnv:
        """The world itself, for experts and viewers."""
        return self._env

    @property
    def error(self) -> str | None:
        """What failed in this episode, if something did."""
        return self._error

    def reset(self, seed: int, noise_seed: int) -> Observation:
        """Start an episode. A world that cannot start says so, and ends at its first turn."""
        self._error = None
        try:
            if self._is_broken:
                self._env = self._build()
                self._is_broken = False
            self._state = self._env.reset(seed, noise_seed)
        except Exception as error:  # noqa: BLE001 - a world's failure is data, kept in its place
            self._fail(error)
            self._state = Observation(text=f"Environment error: {self._error}")
        return self._state

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        if self._error is not None:
            return self._failed((), 0.0, is_well_formed)
        executed: list[str] = []
        reward, is_effective, bad = 0.0, False, None if actions else ""
        result: StepResult | None = None
        try:
            for action in actions[: self._max_actions]:
                spelled = self._spell(action)
                result = self._step(spelled)
                reward += float(result.reward)
                if result.is_valid:
                    executed.append(spelled)
                elif bad is None:
                    bad = action
                if result.is_valid or result.is_effective:
                    self._state = result.observation
                is_effective = is_effective or result.is_effective
                if result.terminated:
                    break
            if bad is None and not is_well_formed:
                bad = ""
            observation = self._next_observation(bad, len(actions) > self._max_actions)
        except Exception as error:  # noqa: BLE001 - see reset
            self._fail(error)
            return self._failed(tuple(executed), reward, is_well_formed and bad is None)
        return TurnResult(
            observation=observation,
            actions=tuple(executed),
            reward=reward,
            format_penalty=0.0,
            is_valid=bad is None,
            is_effective=is_effective,
            terminated=result is not None and result.terminated,
            stop_reason="terminated" if result is not None and result.terminated else None,
            success=self._success(result),
            info=result.info if result is not None else no_info(),
        )

    def instructions(self) -> str:
        return self._env.instructions()

    def close(self) -> None:
        if not self._is_broken:
            self._env.close()

    def _spell(self, action: str) -> str:
        """The environment's own spelling of a legal action; any other text as it is."""
        wanted = normalise(action)
        for legal in self._env.legal_actions():
            if normalise(legal) == wanted:
                return legal
        return action

    def _next_observation(self, bad: str | None, has_dropped: bool) -> Observation:
        notices = [] if bad is None else [self._env.invalid_notice(bad)]
        if has_dropped:
            notices.append(f"Only the first {count(self._max_actions, 'action')} counted.")
        return prefixed(" ".join(notices), self._state) if notices else self._state

    def _success(self, result: StepResult | None) -> bool | None:
        if result is not None and result.success is not None:
            return bool(result.success)
        return False if self._env.reports_success else None

    def _step(self, action: str) -> StepResult:
        if self._timeout_s is None:
            return self._env.step(action)
        return call_within(lambda: self._env.step(action), self._timeout_s)

    def _fail(self, error: Exception) -> None:
        self._is_broken = True
        self._has_timed_out = isinstance(error, ActionTimeoutError)
        self._error = f"{type(error).__name__}: {shorten(str(error), 300)}"

    def _failed(self, actions: tuple[str, ...], reward: float, is_valid: bool) -> TurnResult:
        return TurnResult(
            observation=replace(self._state, text=f"Environment error: {self._error}"),
            actions=actions,
            reward=reward,
            format_penalty=0.0,
            is_valid=is_valid,
            is_effective=False,
            terminated=False,
            stop_reason="timeout" if self._has_timed_out else "env_error",
            success=None,
            error=self._error,
        )


class ActionLimit(TurnLayer):
    """Truncates the episode once `max_actions` actions were executed."""

    def __init__(self, inner: TurnEnv, max_actions: int) -> None:
        super().__init__(inner)
        self._max_actions = max_actions
        self._num_actions = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._num_actions = 0
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        allowed = actions[: self._max_actions - self._num_actions]
        result = super().step_turn(allowed, is_well_formed)
        self._num_actions += len(result.actions)
        if result.stop_reason is None and self._num_actions >= self._max_actions:
            return replace(result, stop_reason="max_actions")
        return result

    def instructions(self) -> str:
        return f"{super().instructions()} At most {count(self._max_actions, 'action')} in all."


class FormatPenalty(TurnLayer):
    """Charges `penalty` (<= 0) once for a turn that is not valid."""

    def __init__(self, inner: TurnEnv, penalty: float) -> None:
        super().__init__(inner)
        self._penalty = penalty

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        return result if result.is_valid else replace(result, format_penalty=self._penalty)


class EndOnInvalid(TurnLayer):
    """Ends the episode at a turn without a single valid action."""

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        if result.stop_reason is None and not result.actions:
            return replace(result, stop_reason="parse_failed")
        return result


class TurnLimit(TurnLayer):
    """Truncates the episode after `max_turns` turns, and tells the policy about its limits."""

    def __init__(self, inner: TurnEnv, max_turns: int, max_actions_per_turn: int) -> None:
        super().__init__(inner)
        self._max_turns = max_turns
        self._max_actions_per_turn = max_actions_per_turn
        self._num_turns = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._num_turns = 0
        return super().reset(seed, noise_seed)

    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        result = super().step_turn(actions, is_well_formed)
        self._num_turns += 1
        if result.stop_reason is None and self._num_turns >= self._max_turns:
            return replace(result, stop_reason="max_turns")
        return result

    def instructions(self) -> str:
        per_turn = count(self._max_actions_per_turn, "action")
        each = " each" if self._max_turns > 1 else ""
        return (
            f"{super().instructions()} You have {count(self._max_turns, 'turn')}, {per_turn}{each}."
        )


def wrap(build: Callable[[], TextEnv], settings: TurnSettings) -> TurnEnv:
    """The stack of layers that `settings` asks for, around the world that `build` makes."""
    stack: TurnEnv = TurnRunner(
        build,
        max_actions_per_turn=settings.max_actions_per_turn,
        action_timeout_s=settings.action_timeout_s,
    )
    if settings.max_actions is not None:
        stack = ActionLimit(stack, settings.max_actions)
    stack = FormatPenalty(stack, settings.format_penalty)
    if settings.end_on_invalid:
        stack = EndOnInvalid(stack)
    return TurnLimit(stack, settings.max_turns, settings.max_actions_per_turn)


def runner_of(stack: TurnEnv) -> TurnRunner:
    """The innermost layer of a stack."""
    while isinstance(stack, TurnLayer):
        stack = stack.inner
    if not isinstance(stack, TurnRunner):
        raise TypeError(f"a stack of turn layers ends in a TurnRunner, not {type(stack).__name__}")
    return stack


def count(number: int, noun: str) -> str:
    """`1 turn`, `2 turns`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


class ActionTimeoutError(Exception):
    """An action took longer than it may."""


def call_within(function: Callable[[], T], seconds: float) -> T:
    """The result of `function`, or `ActionTimeoutError` after `seconds`.

    The call runs in a daemon thread: Python cannot stop it, so a call that never returns is
    abandoned, not ended, and does not keep the process alive.
    """
    results: list[T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            failures.append(error)

    thread = threading.Thread(target=run, name="echoscope-action", daemon=True)
    thread.start()
    thread.join(seconds)
    if failures:
        raise failures[0]
    if not results:
        raise ActionTimeoutError(f"the action took more than {seconds:g} s")
    return results[0]
