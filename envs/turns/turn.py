"""What a turn is: the result of one reply, the limits of an episode, and the interface between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from ..base import Observation, Tool

FAILED = "Environment error: "
"""How an observation begins that says what failed."""
StopReason = Literal["terminated", "max_turns", "max_actions", "env_error", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnResult:
    """What one reply did to the world.

    `observation` is the next one (the final one if the episode ended). `actions` are those that
    were executed, in order, in the environment's own spelling. `reward` is the environment's, the
    sum over them; `format_penalty` (<= 0) is apart from it. `is_valid`: well formed, and every
    action understood. `is_effective`: some action changed the world. `stop_reason` is None while
    the episode goes on. `success` is False until the task is solved, and None where the world
    cannot tell or failed. `info` is that of the last action the world answered. `error` says what
    failed after "env_error" and "timeout". `answers` holds, in a world with tools, the text that
    each action got that was tried, valid or not.
    """

    observation: Observation
    actions: tuple[str, ...]
    reward: float
    format_penalty: float
    is_valid: bool
    is_effective: bool
    terminated: bool
    stop_reason: StopReason | None
    success: bool | None
    info: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    answers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How an episode begins, in a form that crosses processes.

    `instructions` are the rules and the limits, and `tools` what the policy may call. `task_key`
    names the task; a world without keys of its own is named by its first observation. Where the
    world could not start, `task_key` is None and `error` says what failed.
    """

    observation: Observation
    instructions: str = ""
    tools: tuple[Tool, ...] = ()
    task_key: str | None = None
    error: str | None = None


def failed_opening(error: str, tools: tuple[Tool, ...] = ()) -> Opening:
    """The beginning of an episode whose world could not start."""
    return Opening(observation=Observation(text=f"{FAILED}{error}"), tools=tools, error=error)


def failed_turn(
    seen: Observation,
    error: str | None,
    *,
    stop_reason: StopReason = "env_error",
    actions: tuple[str, ...] = (),
    reward: float = 0.0,
    is_valid: bool,
) -> TurnResult:
    """The turn in which a world failed, which ends its episode; `seen` was shown before."""
    return TurnResult(
        observation=replace(seen, text=f"{FAILED}{error}", messages=()),
        actions=actions,
        reward=reward,
        format_penalty=0.0,
        is_valid=is_valid,
        is_effective=False,
        terminated=False,
        stop_reason=stop_reason,
        success=None,
        error=error,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnSettings:
    """Limits and penalties of one episode.

    `max_actions` counts executed actions over the whole episode (None: no limit).
    `format_penalty` (<= 0) falls due once per turn whose reply is malformed, has no action, or has
    an invalid one.
    """

    max_turns: int
    max_actions_per_turn: int
    max_actions: int | None = None
    format_penalty: float = -0.1


class TurnEnv(ABC):
    """A world seen turn by turn."""

    @abstractmethod
    def reset(self, seed: int, noise_seed: int) -> Opening:
        """Start an episode. A world that cannot start says so, and ends at its first turn."""

    @abstractmethod
    def step_turn(self, actions: Sequence[str], is_well_formed: bool) -> TurnResult:
        """Carry out the actions of one reply. Nothing an environment does is raised here."""

    @abstractmethod
    def close(self) -> None:
        """Release the world."""

    @property
    @abstractmethod
    def num_tasks(self) -> int | None:
        """What the world declares; EnvParamsError if that is no number of tasks."""
