"""What crosses the wire, as JSON: version 1, described in docs/remote.md.

Either side trusts nothing of the other: whatever is read here has its type and size checked. A
class is an object of the protocol; `asked` reads a request on the server, `answered` an answer on
the client.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from echoscope.text.strict_json import json_value
from echoscope.text.tool_calls import is_tool_name

from ...base import Observation, StepResult, Tool, checked_result, shorten

VERSION = 1
MAX_BODY_BYTES = 16 << 20
"""Of a request or an answer: an action of a million characters, each escaped, and some room."""
MAX_LISTED = 10_000
"""Actions in one list."""
TOKEN_VARIABLE = "ECHOSCOPE_ENV_TOKEN"
"""Environment variable with the token, on both sides."""
_READ_AS_ONE = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two lone surrogates that a reader of JSON takes for one character."""
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""JSON has no such numbers: `info` sends them as these words."""


class ProtocolError(ValueError):
    """The other side sent what the protocol does not have; one sentence says what."""


class _Record(BaseModel):
    """An object of the protocol. Fields that it does not name are left alone."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, val_json_bytes="base64"
    )


R = TypeVar("R", bound=_Record)
_Whole = Annotated[int, Field(ge=0, le=2**63 - 1)]
_Counted = Annotated[int, Field(ge=1, le=2**63 - 1)]
_Number = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(lambda sent: _NOT_FINITE.get(sent, sent) if isinstance(sent, str) else sent),
]

# -- requests --------------------------------------------------------------------------------------


class EpisodeAsked(_Record):
    """Which episode a request is about: `solve` and `guesses` say no more."""

    episode: _Whole


class ResetAsked(_Record):
    """Of `reset`: the number of the new episode, and its seeds."""

    episode: _Counted
    seed: _Whole
    noise_seed: _Whole


class ActionAsked(EpisodeAsked):
    """Of `notice`: an action, by its code points where JSON would join some of its characters."""

    action: str
    action_code_points: list[Annotated[int, Field(ge=0, le=0x10FFFF)]] | None = None

    @property
    def text(self) -> str:
        """The action as it was sampled."""
        points = self.action_code_points
        return self.action if points is None else "".join(map(chr, points))


class StepAsked(ActionAsked):
    """Of `step`: the action with its number in the episode."""

    number: _Counted


# -- answers ---------------------------------------------------------------------------------------


class State(_Record):
    """What every answer about an episode says."""

    legal_actions: tuple[str, ...] = Field(max_length=MAX_LISTED)
    reports_success: bool


class Opened(State):
    """Of a new session."""

    protocol: int
    session: str = Field(pattern=r"\A[0-9A-Za-z]{1,64}\z")
    tools: tuple[Tool, ...] = Field(max_length=128)
    num_tasks: _Counted | None
    has_own_notice: bool
    instructions: str


class Begun(State):
    """Of `reset`."""

    observation: Observation
    task_key: str = Field(pattern=r"\A[0-9a-f]{16}\z")
    instructions: str


class _Result(_Record):
    observation: Observation
    reward: float
    terminated: bool
    success: bool | None
    is_valid: bool
    is_effective: bool
    info: dict[str, _Number]


class Stepped(State):
    """Of `step`."""

    number: int
    result: _Result


class Actions(_Record):
    """Of `solve` and `guesses`."""

    actions: tuple[str, ...] | None = Field(max_length=MAX_LISTED)


class Notice(_Record):
    """Of `notice`."""

    notice: str


# -- reading and writing ---------------------------------------------------------------------------


def asked(kind: type[R], content: Mapping[str, Any]) -> R:
    """A request, checked.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise ProtocolError(_what_is_wrong(error)) from None


def answered(kind: type[R], data: bytes) -> R:
    """The answer in the bytes of a body, checked.

    Raises:
        ProtocolError: it is none.
    """
    try:
        record = kind.model_validate_json(data)
    except ValidationError as error:
        raise ProtocolError(_what_is_wrong(error)) from None
    for tool in record.tools if isinstance(record, Opened) else ():
        if not is_tool_name(tool.name):
            raise ProtocolError(f"{quoted(tool.name)} is no name of a tool")
    return record


def result_of(stepped: Stepped) -> StepResult:
    """The result in the answer to a step.

    Raises:
        EnvValueError: the contract does not allow it.
    """
    return checked_result(StepResult(**dict(stepped.result)))


def _what_is_wrong(error: ValidationError) -> str:
    """The first fault, as "result.reward is '1', but must be a valid number"."""
    first = error.errors(include_url=False)[0]
    place, rule = ".".join(map(str, first["loc"])), first["msg"]
    if first["type"] == "missing":
        return f"{place} is missing"
    rule = re.sub("^(Input|String|Data|Tuple) should", "must", shorten(rule, 160))
    if not place:
        return f"this is no JSON object of this protocol: {rule}"
    return f"{place} is {quoted(first['input'])}, but {rule}"


def encoded(content: Mapping[str, Any]) -> bytes:
    """An object as JSON in ASCII: lone surrogates of an action cross as escapes."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def decoded(data: bytes) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises:
        ProtocolError: it is none, or has NaN or infinities.
    """
    try:
        content = json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"this is no JSON: {shorten(str(error), 100)}") from None
    if not isinstance(content, dict):
        raise ProtocolError(f"this is no JSON object: {quoted(content)}")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def quoted(value: object) -> str:
    """A value of the other side, in a message."""
    return shorten(repr(value), 80)


def write_action(action: str) -> dict[str, Any]:
    """The fields of an action. JSON would join some lone surrogates, so their code points go along.

    >>> write_action("up"), write_action("\\ud800\\udfff")["action_code_points"]
    ({'action': 'up'}, [55296, 57343])
    """
    content: dict[str, Any] = {"action": action}
    if _READ_AS_ONE.search(action):
        content["action_code_points"] = list(map(ord, action))
    return content


def write_result(result: StepResult) -> dict[str, Any]:
    """A result as JSON; one that the contract does not allow is an `EnvValueError`."""
    result = checked_result(result)
    info = {key: _write_number(number) for key, number in result.info.items()}
    return {**json_value(result), "info": info}


def _write_number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
