"""The contract of a text world.

An environment draws all its randomness from `numpy.random.Generator`s built in `reset`: `seed`
fixes the task, `noise_seed` the transitions. Both together give the same episode for the same
actions in any process. `terminated` is the task's own end; limits (`turns/runner.py`) give
truncation. Invalid input is a valid move of a bad player: the observation says what was wrong,
and nothing is raised.
"""

from __future__ import annotations

import hashlib
import json
import math
import operator
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Literal, SupportsIndex

import numpy as np

from echoscope.text.pictures import PictureError, picture_size

MAX_SEED = 2**63 - 1
"""Seeds are stored as signed 64-bit integers."""

KEY_CHARS = 16
"""Length of a task's key."""

NO_ACTION_NOTICE = "Invalid reply: no action found."
WRONG_FORMAT_NOTICE = "Invalid reply: wrong format."
"""After a reply whose actions were found and played, but whose format is wrong."""

NOTICE_CHARS = 40
"""How much of an invalid action an observation repeats."""


class EnvError(Exception):
    """Anything an environment's user did wrong, or that an environment needs and lacks.

    The message is one line: the value, the rule, the way out.
    """


class UnknownEnvError(EnvError, KeyError):
    """No environment has this id."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message.


class EnvParamsError(EnvError, ValueError):
    """A parameter is unknown, of the wrong type or out of range."""


class EnvUnavailableError(EnvError, RuntimeError):
    """The environment needs data, a server or a package that is not there."""


class EnvValueError(EnvError, TypeError):
    """An environment returned a value that the contract does not allow."""


class SiblingMismatchError(EnvError, RuntimeError):
    """Two siblings of a group saw different first observations: the task is not fixed by `seed`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of a chat. `name` is the tool that a message of the role "tool" comes from."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What the policy reads, and optionally how to draw it.

    `text` is one user message, unless `messages` says more: the first observation of an episode may
    be a whole chat (at most one system message first, then user and assistant in turns, a user
    message last), and a later one tool results and then at most one user message. `text` is then
    what people and the diagnostics read. `frame` is compact JSON for people (see `boards.py`); the
    policy never sees it, because it may show what the text hides. `image` is a PNG picture of the
    world's own, for people, too.
    """

    text: str
    frame: str | None = None
    messages: tuple[Message, ...] = ()
    image: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """What one action did.

    `success`: whether the task is solved by now; None where the environment cannot tell.
    `is_valid`: the action was understood and allowed. `is_effective`: it changed the world.
    """

    observation: Observation
    reward: float
    terminated: bool
    success: bool | None
    is_valid: bool
    is_effective: bool
    info: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A function that the policy may call. `parameters` is the JSON Schema of its arguments."""

    name: str
    description: str
    parameters: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The form that chat templates and the OpenAI API take."""
        function = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": function}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """What the registry knows about an environment without building it.

    `max_turns` and `max_actions_per_turn` are the defaults of the limits; together they must leave
    room for an optimal episode of the default configuration (`check_env` tests it).
    `one_action`: a reply is one action, whatever it holds: a program or a proof may contain the
    text that separates actions elsewhere. `requires` names the packages that it needs beyond the
    base installation, as pip calls them, and `extra` the extra of ours that brings them.
    `quotes_answers`: a question may hold its answer among other words, as one of reading or of
    choice does; `check_env` then does not look for it in the prompt.
    """

    id: str
    config_type: type[Any]
    max_turns: int
    max_actions_per_turn: int = 1
    description: str
    one_action: bool = False
    requires: tuple[str, ...] = ()
    extra: str = ""
    quotes_answers: bool = False

    def __post_init__(self) -> None:
        if self.max_turns < 1 or self.max_actions_per_turn < 1:
            raise EnvParamsError(
                f"{self.id}: max_turns is {self.max_turns} and max_actions_per_turn is "
                f"{self.max_actions_per_turn}, but both must be at least 1"
            )
        if self.one_action and self.max_actions_per_turn > 1:
            raise EnvParamsError(
                f"{self.id}: max_actions_per_turn is {self.max_actions_per_turn}, but must be 1 "
                "where a reply is one action"
            )


class TextEnv(ABC):
    """One world that talks in text. Subclasses set `spec` and implement the abstract methods.

    The class docstring has the headings Description, Observation, Actions, Rewards, Episode end,
    Success, Seeds, Requires, Example, in this order.
    """

    spec: ClassVar[EnvSpec]

    def __init__(self, config: Any) -> None:
        if not isinstance(config, self.spec.config_type):
            raise EnvParamsError(
                f"{self.spec.id} takes a {self.spec.config_type.__name__}, "
                f"not a {type(config).__name__}"
            )

    @classmethod
    def lacks(cls) -> str:
        """What this machine lacks for the default configuration, in words; "" for nothing.

        For tools and servers; packages stand in `spec.requires`.
        """
        return ""

    @property
    def reports_success(self) -> bool:
        """Whether this world has a notion of success; if not, `StepResult.success` is None."""
        return True

    @abstractmethod
    def reset(self, seed: int, noise_seed: int) -> Observation:
        """Start an episode. `seed` in [0, 2**63) is the task, `noise_seed` its transitions."""

    @abstractmethod
    def step(self, action: str) -> StepResult:
        """Carry out one action, any string. Never raises for what the string says.

        An invalid action leaves the world as it was and is answered by an observation that begins
        with `invalid_notice(action)`.
        """

    @abstractmethod
    def instructions(self) -> str:
        """The rules, for the first prompt; written from this instance's configuration."""

    def solve(self) -> list[str] | None:
        """Shortest sequence of actions to success from the current state; [] if it is reached.

        None if the environment has no scripted expert, or success is out of reach from here.
        """
        return None

    def legal_actions(self) -> tuple[str, ...]:
        """The actions that are understood now; empty if they cannot be listed."""
        return ()

    def guesses(self) -> tuple[str, ...]:
        """Actions of a player who guesses, for demonstrations with mistakes in them."""
        return self.legal_actions()

    def tools(self) -> tuple[Tool, ...]:
        """The tools that the policy may call, the same in every episode; see `ToolEnv`."""
        return ()

    def invalid_notice(self, action: str) -> str:
        """What an observation begins with after an invalid action; "" if the reply had none."""
        if not action.strip():
            return NO_ACTION_NOTICE
        return f'Invalid action "{shorten(action)}".'

    def task_key(self) -> str | None:
        """The key of the task that the last `reset` drew: `hash_task(self.spec.id, ...)`.

        Two tasks have the same key exactly when they begin in the same state of the same world:
        the same board with the same start, whatever the seed that drew it, the noise, the format of
        the observation, the limits or the difficulty of the moves. Evaluation owns some keys, and
        no other split plays them. None (the default): the first observation is the task.
        """
        return None

    @property
    def num_tasks(self) -> int | None:
        """How many different tasks `reset` can draw; None if that is unknown or very many.

        Evaluation reserves tasks only where there are enough (see `reserving.py`). Where this is
        None, the tasks of a few fixed seeds decide.
        """
        return None

    def close(self) -> None:  # noqa: B027 - most worlds hold nothing to release
        """Release what the environment holds. It is not used afterwards."""


def checked_observation(value: object) -> Observation:
    """`value` if it is an Observation that can be shown and stored, else an `EnvValueError`."""
    if not isinstance(value, Observation):
        raise EnvValueError(f"expected an Observation, got {_shown(value)}")
    checked_text("the observation", value.text)
    if value.frame is not None:
        checked_text("the frame", value.frame)
    if value.image is not None:
        try:
            picture_size(value.image)
        except PictureError as error:
            raise EnvValueError(f"the image of an observation: {error}") from None
    for message in value.messages:
        if not isinstance(message, Message):
            raise EnvValueError(f"a message is {_shown(message)}, but must be a Message")
        checked_text("a message", message.content)
        checked_text("the name of a message", message.name)
    return value


def checked_opening(value: object) -> Observation:
    """A first observation whose messages are a chat that a user message ends."""
    observation = checked_observation(value)
    roles = [message.role for message in observation.messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    is_dialogue = (
        len(turns) % 2 == 1 and {*turns[::2]} == {"user"} and {*turns[1::2]} <= {"assistant"}
    )
    if roles and not is_dialogue:
        raise EnvValueError(
            f"the first observation has the roles {_shown(roles)}, but must have user and "
            "assistant in turns, ending with user, after at most one system message"
        )
    return observation


def checked_feedback(value: Observation) -> Observation:
    """A later observation, whose messages are tool results and then at most one user message."""
    roles = [message.role for message in value.messages]
    if {*roles[:-1]} - {"tool"} or {*roles[-1:]} - {"tool", "user"}:
        raise EnvValueError(
            f"an observation has the roles {_shown(roles)}, but after the first one it may only "
            "have tool results and then a user message"
        )
    return value


def checked_result(value: object) -> StepResult:
    """What `step` returned with Python's own types, or an `EnvValueError`.

    NumPy's numbers and booleans pass, and so does a boolean for a number. A reward is finite;
    `info` maps text to numbers.
    """
    if not isinstance(value, StepResult):
        raise EnvValueError(f"step() returned {_shown(value)}, but must return a StepResult")
    if not isinstance(value.info, Mapping):
        raise EnvValueError(f"info is {_shown(value.info)}, but must map text to numbers")
    return StepResult(
        observation=checked_observation(value.observation),
        reward=_checked_number("reward", value.reward, must_be_finite=True),
        terminated=_checked_flag("terminated", value.terminated),
        success=None if value.success is None else _checked_flag("success", value.success),
        is_valid=_checked_flag("is_valid", value.is_valid),
        is_effective=_checked_flag("is_effective", value.is_effective),
        info={
            checked_text("a key of info", key): _checked_number(f"info[{key!r}]", number)
            for key, number in value.info.items()
        },
    )


def checked_text(what: str, value: object) -> str:
    """`value` if it is text that UTF-8 can write, else an `EnvValueError`."""
    if not isinstance(value, str):
        raise EnvValueError(f"{what} is {_shown(value)}, but must be text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise EnvValueError(
            f"{what} is {_shown(value)}, which has a lone surrogate: UTF-8 cannot write it"
        ) from None
    return value


def _checked_number(what: str, value: object, *, must_be_finite: bool = False) -> float:
    if isinstance(value, Real):
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if math.isfinite(number) or not must_be_finite:
            return number
    kind = "a finite number" if must_be_finite else "a number"
    raise EnvValueError(f"{what} is {_shown(value)}, but must be {kind}")


def _checked_flag(what: str, value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise EnvValueError(f"{what} is {_shown(value)}, but must be true or false")
    return bool(value)


def _shown(value: object) -> str:
    """A value of any type in a message; its own `repr` may fail."""
    try:
        return shorten(repr(value), 100)
    except Exception:  # noqa: BLE001 - somebody else's __repr__
        return f"a {type(value).__name__}"


def hash_task(*parts: Any) -> str:
    """The key of a task: 16 hex characters of blake2b over `parts` as canonical JSON.

    Args:
        parts: the environment's id, then plain data (text, numbers, arrays, None, lists and dicts
            of them) that says all of the task's first state. Sort what has no order.

    >>> hash_task("lake", [4, 4], [[0, 1]]) == hash_task("lake", (4, 4), ((0, 1),))
    True
    """
    text = json.dumps(
        parts, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_plain_number
    )
    return hashlib.blake2b(text.encode("ascii"), digest_size=KEY_CHARS // 2).hexdigest()


def _plain_number(value: object) -> Any:
    """NumPy's numbers and arrays as Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"a task key is made of plain data, not of {type(value).__name__}")


def is_task_key(value: object) -> bool:
    """Whether `value` is what `hash_task` returns."""
    return (
        isinstance(value, str) and len(value) == KEY_CHARS and set(value) <= set("0123456789abcdef")
    )


def prefixed(notice: str, observation: Observation) -> Observation:
    """`observation` after a notice: on the same line if it is one line, else on the next."""
    gap = "\n" if "\n" in observation.text else " "
    return replace(observation, text=f"{notice}{gap}{observation.text}", messages=())


def shorten(text: str, limit: int = NOTICE_CHARS) -> str:
    """`text` on one printable ASCII line of at most `limit` characters, for messages."""
    visible = text[: limit + 1].strip().encode("ascii", "backslashreplace").decode("ascii")
    visible = "".join(char if char.isprintable() else "?" for char in visible)
    return visible if len(visible) <= limit and len(text) <= limit else visible[: limit - 3] + "..."


def normalise(action: str) -> str:
    """How actions are compared: surrounding blanks and letter case do not matter."""
    return action.strip().casefold()


def check_seed(name: str, value: SupportsIndex) -> int:
    """`value` as Python's int if it is an integer in [0, 2**63), NumPy's too.

    Raises:
        EnvParamsError: it is none. A boolean is none.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool | np.bool_):
        try:
            seed = operator.index(value)
        except TypeError:  # an array has `__index__`, but only that of one integer works
            seed = -1
        if 0 <= seed <= MAX_SEED:
            return seed
    raise EnvParamsError(f"{name} is {value!r}, but must be an integer in [0, 2**63)")
