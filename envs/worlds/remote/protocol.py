"""What crosses the wire, as JSON: version 1, described in docs/remote.md.

Either side trusts nothing of the other: whatever is read here has its type and size checked.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from echoscope.text.tool_calls import is_tool_name

from ...base import (
    EnvValueError,
    Message,
    Observation,
    StepResult,
    Tool,
    checked_observation,
    checked_result,
    checked_text,
    shorten,
)

VERSION = 1
MAX_BODY_BYTES = 16 << 20
"""Of a request or an answer: an action of a million characters, each escaped, and some room."""
MAX_LISTED = 10_000
"""Actions, tools or messages in one list."""
TOKEN_VARIABLE = "ECHOSCOPE_ENV_TOKEN"
"""Environment variable with the token, on both sides."""
_READ_AS_ONE = re.compile("[\ud800-\udbff][\udc00-\udfff]")
"""Two lone surrogates that a reader of JSON takes for one character."""
_MAX_CODE_POINT = 0x10FFFF
_ROLES = ("system", "user", "assistant", "tool")
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""JSON has no such numbers: `info` sends them as these words."""


class ProtocolError(ValueError):
    """The other side sent what the protocol does not have; one sentence says what."""


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
        raise ProtocolError(f"this is no JSON object: {shown(content)}")
    return content


def _no_constant(name: str) -> Any:
    raise ValueError(f"JSON has no {name}")


def shown(value: object) -> str:
    """A value of the other side, in a message."""
    return shorten(repr(value), 80)


def text_of(content: Mapping[str, Any], key: str, default: str | None = None) -> str:
    """A text that may hold anything, lone surrogates too."""
    value = content.get(key, default)
    if not isinstance(value, str):
        raise ProtocolError(f"{key} is {shown(value)}, but must be text")
    return value


def integer_of(
    content: Mapping[str, Any], key: str, *, least: int = 0, most: int = 2**63 - 1
) -> int:
    """A whole number."""
    value = content.get(key)
    if type(value) is not int or not least <= value <= most:
        raise ProtocolError(
            f"{key} is {shown(value)}, but must be a whole number from {least} to {most}"
        )
    return value


def flag_of(content: Mapping[str, Any], key: str) -> bool:
    """True or false."""
    value = content.get(key)
    if not isinstance(value, bool):
        raise ProtocolError(f"{key} is {shown(value)}, but must be true or false")
    return value


def object_of(content: Mapping[str, Any], key: str) -> dict[str, Any]:
    """An object."""
    value = content.get(key)
    if not isinstance(value, dict):
        raise ProtocolError(f"{key} is {shown(value)}, but must be an object")
    return value


def list_of(content: Mapping[str, Any], key: str, most: int = MAX_LISTED) -> list[Any]:
    """A list of bounded length."""
    value = content.get(key)
    if not isinstance(value, list) or len(value) > most:
        raise ProtocolError(f"{key} is {shown(value)}, but must be a list of at most {most}")
    return value


def texts_of(content: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """A list of texts that can be stored."""
    return tuple(checked_text(f"an entry of {key}", each) for each in list_of(content, key))


def write_action(action: str) -> dict[str, Any]:
    """The fields of an action. JSON would join some lone surrogates, so their code points go along.

    >>> write_action("up"), write_action("\\ud800\\udfff")["action_code_points"]
    ({'action': 'up'}, [55296, 57343])
    """
    content: dict[str, Any] = {"action": action}
    if _READ_AS_ONE.search(action):
        content["action_code_points"] = list(map(ord, action))
    return content


def read_action(content: Mapping[str, Any]) -> str:
    """The action of a request: of its code points where it has them, else of its text.

    Raises:
        ProtocolError: it has none.
    """
    action = text_of(content, "action")
    if content.get("action_code_points") is None:
        return action
    points = list_of(content, "action_code_points", MAX_BODY_BYTES)
    if not all(type(point) is int and 0 <= point <= _MAX_CODE_POINT for point in points):
        raise ProtocolError(
            f"action_code_points is {shown(points)}, but must be integers from 0 to "
            f"{_MAX_CODE_POINT}"
        )
    return "".join(map(chr, points))


def write_observation(observation: Observation) -> dict[str, Any]:
    """An observation as JSON."""
    messages = [
        {"role": message.role, "content": message.content, "name": message.name}
        for message in observation.messages
    ]
    image = observation.image
    return {
        "text": observation.text,
        "frame": observation.frame,
        "view": observation.view,
        "messages": messages,
        "image": None if image is None else base64.b64encode(image).decode("ascii"),
    }


def read_observation(content: Mapping[str, Any]) -> Observation:
    """An observation from JSON.

    Raises:
        ProtocolError, EnvValueError: it is none.
    """
    frame, view = content.get("frame"), content.get("view")
    return checked_observation(
        Observation(
            text=text_of(content, "text"),
            frame=None if frame is None else text_of(content, "frame"),
            view=None if view is None else text_of(content, "view"),
            messages=tuple(map(_read_message, list_of(content, "messages"))),
            image=_read_image(content),
        )
    )


def _read_image(content: Mapping[str, Any]) -> bytes | None:
    if content.get("image") is None:
        return None
    try:
        return base64.b64decode(text_of(content, "image"), validate=True)
    except ValueError:
        raise ProtocolError("image is not written in base64") from None


def _read_message(content: Any) -> Message:
    if not isinstance(content, dict) or content.get("role") not in _ROLES:
        raise ProtocolError(f"a message is {shown(content)}, but has a role of {', '.join(_ROLES)}")
    return Message(
        role=content["role"],
        content=text_of(content, "content"),
        name=text_of(content, "name", ""),
    )


def write_result(result: StepResult) -> dict[str, Any]:
    """A result as JSON; one that the contract does not allow is an `EnvValueError`."""
    result = checked_result(result)
    return {
        "observation": write_observation(result.observation),
        "reward": result.reward,
        "terminated": result.terminated,
        "success": result.success,
        "is_valid": result.is_valid,
        "is_effective": result.is_effective,
        "info": {key: _write_number(number) for key, number in result.info.items()},
    }


def read_result(content: Mapping[str, Any]) -> StepResult:
    """A result from JSON.

    Raises:
        ProtocolError, EnvValueError: it is none.
    """
    reward = content.get("reward")
    if isinstance(reward, bool) or not isinstance(reward, int | float):
        raise ProtocolError(f"reward is {shown(reward)}, but must be a number")
    return checked_result(
        StepResult(
            observation=read_observation(object_of(content, "observation")),
            reward=reward,
            terminated=flag_of(content, "terminated"),
            success=None if content.get("success") is None else flag_of(content, "success"),
            is_valid=flag_of(content, "is_valid"),
            is_effective=flag_of(content, "is_effective"),
            info={
                key: _read_number(key, number) for key, number in object_of(content, "info").items()
            },
        )
    )


def _write_number(number: float) -> float | str:
    if math.isfinite(number):
        return number
    return next(
        word
        for word, value in _NOT_FINITE.items()
        if value == number or (math.isnan(value) and math.isnan(number))
    )


def _read_number(key: str, value: Any) -> float:
    if isinstance(value, str) and value in _NOT_FINITE:
        return _NOT_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EnvValueError(f"info[{shown(key)}] is {shown(value)}, but must be a number")
    return value


def write_tool(tool: Tool) -> dict[str, Any]:
    """A tool as JSON."""
    return {
        "name": tool.name,
        "description": tool.description,
        "parameters": dict(tool.parameters),
    }


def read_tool(content: Any) -> Tool:
    """A tool from JSON.

    Raises:
        ProtocolError: it is none.
    """
    if not isinstance(content, dict) or not is_tool_name(text_of(content, "name")):
        raise ProtocolError(f"{shown(content)} is no tool")
    description = checked_text("description", text_of(content, "description"))
    return Tool(
        name=content["name"], description=description, parameters=object_of(content, "parameters")
    )
