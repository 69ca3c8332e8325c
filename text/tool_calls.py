"""Tool calls in the text of a reply, and how a call and an answer are spelled as actions.

Two formats are read and written:

    hermes  Qwen2.5, Qwen3, Hermes  <tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>
    llama   Llama 3.x               {"name": "f", "parameters": {"x": 1}}, alone or after
                                    <|python_tag|>, several separated by `;`

Other spellings are read, too, in either format:

    OpenAI       {"type": "function", "function": {"name": "f", "arguments": "{\\"x\\": 1}"}}
    Qwen3-Coder  <tool_call><function=f><parameter=x>1</parameter></function></tool_call>

Arguments may be a JSON object in a string, as OpenAI's API writes them, or null for none.

An environment with tools is given actions of three kinds, and no reply can pass one for another:

    lookup {"item": "tea"}      a call: the tool's name, a blank, its arguments as JSON
    answer 42                   what stands between <answer> and </answer>
    ! the call is not JSON      a call that could not be read, with the reason
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .strict_json import each_key_once, parsed_json

Span = tuple[int, int]
"""Half-open `[start, end)`."""
ToolFormat = Literal["hermes", "llama"]

ANSWER = "answer"
"""The word before an answer; no tool has this name."""
BROKEN = "!"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_BLANKS = re.compile(r"\s*")
_FUNCTION = re.compile(r"<function=([^>\n]{1,80})>(.*)</function>", re.DOTALL)
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]{1,200})>\n?(.*?)\n?</parameter>", re.DOTALL)
_ACTION = re.compile(rf"({_NAME.pattern}) (\{{.*\}})", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalledTool:
    """One call that a reply makes, at `chars` of its text, tags included.

    `problem` says why the call cannot be played; `name` and `arguments` are then empty. `arguments`
    is a JSON object as text, its keys sorted.
    """

    chars: Span
    name: str = ""
    arguments: str = ""
    problem: str = ""

    @property
    def action(self) -> str:
        """The call as an environment's action."""
        if self.problem:
            return f"{BROKEN} {self.problem}"
        return f"{self.name} {self.arguments}"


def find_calls(text: str, start: int, tool_format: ToolFormat) -> tuple[CalledTool, ...]:
    """The calls of a reply from character `start` on, in order.

    Never raises, whatever the text; makes a fixed number of linear passes over it.
    """
    if tool_format == "hermes":
        return tuple(_tagged_calls(text, start))
    return tuple(_bare_calls(text, start))


def spell_call(name: str, arguments: Mapping[str, Any], tool_format: ToolFormat) -> str:
    """A call as a model of that format writes it."""
    word = "arguments" if tool_format == "hermes" else "parameters"
    body = f'{{"name": {_json(name)}, "{word}": {_json(dict(arguments))}}}'
    return f"{CALL_OPEN}\n{body}\n{CALL_CLOSE}" if tool_format == "hermes" else body


def call_action(name: str, arguments: Mapping[str, Any]) -> str:
    """A call as an action: `lookup {"item": "tea"}`.

    Raises:
        ValueError: the name is no tool's name, or the arguments are not JSON.
    """
    if not is_tool_name(name):
        raise ValueError(f"{name!r} is no name of a tool")
    return f"{name} {canonical(dict(arguments))}"


def answer_action(text: str) -> str:
    """An answer as an action: `answer 42`."""
    return f"{ANSWER} {text}"


def read_call(action: str) -> tuple[str, dict[str, Any]] | None:
    """Name and arguments of a call that is spelled as an action; None for anything else."""
    match = _ACTION.fullmatch(action.strip())
    if match is None or match.group(1) == ANSWER:
        return None
    try:
        return match.group(1), _object(match.group(2))
    except ValueError:
        return None


def read_answer(action: str) -> str | None:
    """The text of an answer that is spelled as an action; None for anything else."""
    word, _, text = action.strip().partition(" ")
    return text.strip() or None if word == ANSWER else None


def read_problem(action: str) -> str | None:
    """Why a call could not be read, of an action that stands for one; None for anything else."""
    word, _, problem = action.strip().partition(" ")
    return problem if word == BROKEN else None


def is_tool_name(name: str) -> bool:
    """Letters, digits, `_`, `.` and `-`, at most 64, a letter or `_` first, and not `answer`."""
    return _NAME.fullmatch(name) is not None and name != ANSWER


def canonical(arguments: Mapping[str, Any]) -> str:
    """Arguments as JSON text with sorted keys, so that equal calls read alike.

    Raises:
        ValueError: a number that is not finite, or text that UTF-8 cannot write.
    """
    text = _json(dict(arguments), sort_keys=True)
    text.encode("utf-8")
    return text


def _tagged_calls(text: str, start: int) -> Iterator[CalledTool]:
    position = text.find(CALL_OPEN, start)
    while position >= 0:
        inner = position + len(CALL_OPEN)
        close = text.find(CALL_CLOSE, inner)
        if close < 0:
            yield CalledTool(chars=(position, len(text)), problem=f"{CALL_OPEN} is never closed")
            return
        end = close + len(CALL_CLOSE)
        yield _read(text[inner:close], (position, end))
        position = text.find(CALL_OPEN, end)


def _bare_calls(text: str, start: int) -> Iterator[CalledTool]:
    """Calls without tags: the whole rest of the reply, from its first character on."""
    begin = _after_blanks(text, start)
    position = begin
    if text.startswith(PYTHON_TAG, position):
        position += len(PYTHON_TAG)
    elif not text.startswith("{", position):
        return
    decoder = json.JSONDecoder()
    while True:
        position = _after_blanks(text, position)
        end = _end_of_json(text, position, decoder)
        yield _read(text[position:end], (begin, end))
        position = begin = _after_blanks(text, end)
        if not text.startswith(";", position) or _after_blanks(text, position + 1) == len(text):
            return
        position += 1


def _end_of_json(text: str, position: int, decoder: json.JSONDecoder) -> int:
    """Where the JSON value that begins there ends; the end of the text where there is none."""
    try:
        return decoder.raw_decode(text, position)[1]
    except (ValueError, RecursionError):
        return len(text)


def _after_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return position if match is None else match.end()


def _read(body: str, chars: Span) -> CalledTool:
    """One call from the text between its tags: a JSON object, or Qwen3-Coder's elements."""
    try:
        call = _elements(body) or _object(body.strip())
        inner = call.get("function")
        call = inner if isinstance(inner, dict) else call
        arguments = call.get("arguments", call.get("parameters", {}))
        return CalledTool(
            chars=chars, name=_name(call.get("name")), arguments=_arguments(arguments)
        )
    except (ValueError, RecursionError) as error:
        return CalledTool(chars=chars, problem=_reason(error, body))


def _name(name: Any) -> str:
    if not isinstance(name, str) or not is_tool_name(name):
        raise ValueError('a call needs a "name" that is the name of a tool')
    return name


def _arguments(arguments: Any) -> str:
    """The arguments of a call as canonical text; null stands for none."""
    if isinstance(arguments, str):
        arguments = _object(arguments.strip() or "{}")
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call must be a JSON object")
    return canonical(arguments)


def _elements(body: str) -> dict[str, Any] | None:
    """A call in Qwen3-Coder's elements, None for anything else; a value is JSON if it reads so."""
    function = _FUNCTION.fullmatch(body.strip())
    if function is None:
        return None
    name, inside = function.groups()
    pairs, position = [], 0
    while match := _PARAMETER.match(inside, position):
        pairs.append((match.group(1), _value(match.group(2))))
        position = match.end()
    if inside[position:].strip():
        raise ValueError("the call has something between its parameters")
    return {"name": name.strip(), "arguments": each_key_once(pairs)}


def _value(text: str) -> Any:
    try:
        return parsed_json(text)
    except ValueError:
        return text


def _reason(error: ValueError | RecursionError, body: str) -> str:
    """Why a call cannot be read, on one short line."""
    if isinstance(error, json.JSONDecodeError):
        return f"the call is not JSON: {error.msg} at character {error.pos} of {len(body.strip())}"
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "the call has a lone surrogate, which UTF-8 cannot write"
    return str(error)[:200]


def _object(text: str) -> dict[str, Any]:
    """A JSON object in which no key stands twice and every number is finite, or a ValueError."""
    value = parsed_json(text)
    if not isinstance(value, dict):
        raise ValueError("a call must be a JSON object")
    canonical(value)
    return value


def _json(value: Any, *, sort_keys: bool = False) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys)
    except RecursionError:
        raise ValueError("nested too deeply") from None
