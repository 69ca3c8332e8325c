"""What crosses the wire, as JSON: OpenEnv's addresses and shapes, and ours (docs/remote.md).

Either side trusts nothing of the other: whatever is read here has its type and size checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from echoscope.text.tool_calls import is_tool_name

from ...base import MAX_SEED, Message, Tool, shorten

VERSION: Literal[1] = 1
MAX_BODY_BYTES = 16 << 20
"""Of a request or an answer: an action of a million characters, each escaped, and some room."""
MAX_LISTED = 10_000
"""Actions in one list."""
TOKEN_VARIABLE = "ECHOSCOPE_ENV_TOKEN"
"""Environment variable with the token, on both sides."""


class ProtocolError(ValueError):
    """The other side sent what the protocol does not have; one sentence says what."""


class _Record(BaseModel):
    """An object of the protocol. Fields that it does not name are left alone."""

    model_config = ConfigDict(
        strict=True, frozen=True, allow_inf_nan=False, val_json_bytes="base64"
    )


R = TypeVar("R", bound=_Record)


class PolicyAction(_Record):
    """What a policy does."""

    model_config = ConfigDict(title="Action")  # as OpenEnv's schema calls it

    text: str


class WorldRequest(_Record):
    """A request. What a verb does not need is left out.

    `number` rises with each request of a client: one that comes twice is answered from memory.
    """

    episode_id: str = Field("default", min_length=1, max_length=255)
    number: int = Field(0, ge=0, le=MAX_SEED)
    env: str | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = Field(None, ge=0, le=MAX_SEED)
    noise_seed: int = Field(0, ge=0, le=MAX_SEED)
    action: PolicyAction = PolicyAction(text="")


class Seen(_Record):
    """What a policy may read. The frame shows people more, so it stands in the metadata."""

    text: str
    messages: tuple[Message, ...] = ()
    image: bytes | None = None
    legal_actions: tuple[str, ...] = Field((), max_length=MAX_LISTED)


class State(_Record):
    """Where an episode stands."""

    episode_id: str
    step_count: int
    task_key: str


class EpisodeFacts(_Record):
    """What an answer says about the episode besides."""

    task_key: str = Field(pattern=r"\A[0-9a-f]{16}\z")
    instructions: str
    reports_success: bool
    frame: str | None = None
    success: bool | None = None
    is_valid: bool = True
    is_effective: bool = True
    info: dict[str, float | None] = Field(default_factory=dict)
    """null for a number that is not finite."""


class StepAnswer(_Record):
    """Of `reset` (without a reward) and `step`."""

    observation: Seen
    reward: float | None
    done: bool
    metadata: EpisodeFacts


class OpenedWorld(_Record):
    """Of `open`: what is known of a world before its first episode."""

    protocol: Literal[1]
    tools: tuple[Tool, ...] = Field(max_length=128)
    num_tasks: int | None = Field(ge=1)
    reports_success: bool
    has_own_notice: bool
    instructions: str


class WorldHint(_Record):
    """Of `solve` and `guesses`: actions. Of `notice`: how an observation begins."""

    actions: tuple[str, ...] | None = Field(None, max_length=MAX_LISTED)
    notice: str = ""


def read_request(content: Mapping[str, Any]) -> WorldRequest:
    """A request, checked.

    Raises:
        ProtocolError: it is none.
    """
    try:
        return WorldRequest.model_validate(content)
    except ValidationError as error:
        raise ProtocolError(_what_is_wrong(error)) from None


def read_answer(kind: type[R], data: bytes) -> R:
    """The answer in the bytes of a body, checked.

    Raises:
        ProtocolError: it is none.
    """
    try:
        record = kind.model_validate_json(data)
    except ValidationError as error:
        raise ProtocolError(_what_is_wrong(error)) from None
    for tool in record.tools if isinstance(record, OpenedWorld) else ():
        if not is_tool_name(tool.name):
            raise ProtocolError(f"{quoted(tool.name)} is no name of a tool")
    return record


def _what_is_wrong(error: ValidationError) -> str:
    """The first fault, as "reward is '1', but must be a valid number"."""
    first = error.errors(include_url=False)[0]
    location, rule = ".".join(map(str, first["loc"])), first["msg"]
    if first["type"] == "missing":
        return f"{location} is missing"
    rule = re.sub("^(Input|String|Data|Tuple) should", "must", shorten(rule, 160))
    if not location:
        return f"this is no JSON object of this protocol: {rule}"
    return f"{location} is {quoted(first['input'])}, but {rule}"


def encoded(content: Mapping[str, Any]) -> bytes:
    """An object as JSON in ASCII: lone surrogates of an action cross as escapes."""
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def quoted(value: object) -> str:
    """A value of the other side, in a message."""
    return shorten(repr(value), 80)
