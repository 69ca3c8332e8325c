"""A chat with tools as token ids: declarations, results, and the way from one message to the next.

Where the model's template knows tools, everything around the contents is the template's, cut at
marks as in `chat`; where it does not, the tools are declared in the system message and a result is
a user message between <tool_response> tags. Either way results are prompt: they are appended as
tokens, and no token of theirs was sampled.

    opening          system message with the declared tools, and what opens the first user turn
    [question]
    to_assistant
    [call]           sampled, up to and with its turn's end
    feedback         what opens a tool message, [result], what stands between two, ...
    to_assistant     what closes a tool message and opens the reply
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jinja2 import TemplateError

from echoscope.envs.base import Message, Tool
from echoscope.store.records import IntArray
from echoscope.text.replies import THINK_OPEN
from echoscope.text.tool_calls import CALL_OPEN, PYTHON_TAG, ToolFormat

from .chat import ChatFormat, ChatFormatError

_PROBE = 'a"b'
"""Text that a template which writes results as JSON escapes."""
_RESULT_OPEN, _RESULT_CLOSE = "<tool_response>\n", "\n</tool_response>"

_HOW_TO_CALL: Mapping[ToolFormat, str] = {
    "hermes": '<tool_call>{"name": "tool", "arguments": {"argument": value}}</tool_call>',
    "llama": '{"name": "tool", "parameters": {"argument": value}}',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Native:
    """What the model's own template writes for these tools."""

    first: tuple[str, str, str]  # opening without a system message; with one; from it to the user
    result_opens: list[int]  # from a reply to the first result, without the reply's end
    result_follows: list[int]  # from one result to the next
    user_follows: list[int]  # from a result to a user message
    reply_follows: Mapping[bool, list[int]]  # from a result to the reply, by whether <think> opens
    is_json: bool
    """Results stand between quotes, escaped as JSON."""


class ToolChat:
    """The chat format of one model with one set of tools. Holds no state of any conversation.

    Args:
        tool_format: how the model spells calls; "auto": as its template says.

    Raises:
        ChatFormatError: a tool's declaration spells a control token of the model.
    """

    def __init__(
        self,
        chat: ChatFormat,
        tools: Sequence[Tool],
        tool_format: Literal["auto", "hermes", "llama"] = "auto",
    ) -> None:
        self._chat = chat
        self._tools = [tool.as_json() for tool in tools]
        word = chat.control_word_in(json.dumps(self._tools, ensure_ascii=False))
        if word is not None:
            raise ChatFormatError(
                f"the declaration of a tool spells {word!r}, which is a control token of this "
                "model: change the tool's name, description or parameters"
            )
        spoken = (
            _format_of(chat.template(with_tools=True)) if tool_format == "auto" else tool_format
        )
        # A template that asks for calls in a third format would ask for what nobody reads.
        self._native = None if spoken is None else _native(chat, self._tools)
        self.format: ToolFormat = spoken or "hermes"

    def opening(self, system: str) -> list[int]:
        """Everything before the contents of the first user turn."""
        encode = self._chat.encode_template
        if self._native is None:
            # In words: the template has no place for the tools.
            lines = [_signature(tool["function"]) for tool in self._tools]
            how = f"To call one: {_HOW_TO_CALL[self.format]}"
            declared = "\n".join(["Tools:", *lines, how])
            return self._chat.opening(f"{system}\n\n{declared}" if system else declared)
        bare, opening, between = self._native.first
        if not system:
            return encode(bare)
        return encode(opening) + self._chat.encode(system) + encode(between)

    def feedback(
        self, messages: Sequence[Message], response: Sequence[int] | IntArray
    ) -> list[int]:
        """From a response to the end of the contents of these messages.

        Args:
            messages: results, then at most one user message.
        """
        results = [message.content for message in messages if message.role == "tool"]
        by_user = [message.content for message in messages if message.role != "tool"]
        chat, native = self._chat, self._native
        if native is None or not results:
            return [*chat.to_user(response), *chat.encode(self.as_text(messages))]
        out = chat.closing(response)
        for index, result in enumerate(results):
            out += native.result_follows if index else native.result_opens
            in_json = json.dumps(result, ensure_ascii=False)[1:-1]  # without its quotes
            out += chat.encode(in_json if native.is_json else result)
        if by_user:
            out += native.user_follows + chat.encode("\n".join(by_user))
        return out

    def to_assistant(self, messages: Sequence[Message], force_think: bool) -> list[int]:
        """From the end of these messages to the first token to sample."""
        if self._native is None or not messages or messages[-1].role != "tool":
            return self._chat.to_assistant(force_think)
        return self._native.reply_follows[force_think]

    def as_text(self, messages: Sequence[Message]) -> str:
        """Messages as the text of one user turn."""
        return "\n".join(
            f"{_RESULT_OPEN}{message.content}{_RESULT_CLOSE}"
            if message.role == "tool"
            else message.content
            for message in messages
        )


def _native(chat: ChatFormat, tools: Sequence[Mapping[str, Any]]) -> _Native | None:
    """What the template writes for the tools; None where it has no place for them.

    None as well where a later prompt could not extend the one before it: the pieces between
    messages must be the same every time, and a reply must open as it does without tools.
    """
    call_and_result = ["user", "assistant", "tool"]
    try:
        bare = chat.pieces(["user"], tools=tools)
        if not all(tool["function"]["name"] in bare[0] for tool in tools):
            return None
        pieces = chat.pieces([*call_and_result, "tool", "assistant", "tool", "user"], tools=tools)
        reply = chat.pieces(call_and_result, tools=tools)[3]
        escaped = chat.pieces(call_and_result, tools=tools, extra=_PROBE)[3]
    except (TemplateError, ChatFormatError, TypeError, KeyError, ValueError):
        return None
    try:
        opening, between = chat.pieces(["system", "user"], tools=tools)[:2]
    except (TemplateError, ChatFormatError):
        opening, between = bare[0], "\n\n"
    encode = chat.encode_template
    opens = encode(pieces[2])
    if pieces[2] != pieces[5] or opens[:1] != [chat.turn_end_id]:
        return None
    if not encode(bare[1]) == encode(pieces[7]) == chat.to_assistant(False):
        return None
    forced = reply if chat.template_forces_think else reply + THINK_OPEN
    return _Native(
        first=(bare[0], opening, between),
        result_opens=opens[1:],
        result_follows=encode(pieces[3]),
        user_follows=encode(pieces[6]),
        reply_follows={False: encode(reply), True: encode(forced)},
        is_json=escaped.startswith(json.dumps(_PROBE)[1:-1]),
    )


def _signature(function: Mapping[str, Any]) -> str:
    """A function in one line; its whole schema where that is more than names and types.

    >>> schema = {"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}
    >>> _signature({"name": "root", "description": "Square root.", "parameters": schema})
    'root(x: number): Square root.'
    """
    name, about, schema = function["name"], function["description"], dict(function["parameters"])
    properties = schema.pop("properties", {})
    required = schema.pop("required", [])
    is_plain = schema in ({}, {"type": "object"}) and all(
        set(each) == {"type"} and isinstance(each["type"], str) for each in properties.values()
    )
    if not is_plain:
        return f"{name}: {about} {json.dumps(function['parameters'], ensure_ascii=False)}"
    arguments = [
        f"{key}{'' if key in required else '?'}: {each['type']}" for key, each in properties.items()
    ]
    return f"{name}({', '.join(arguments)}): {about}"


def _format_of(template: str) -> ToolFormat | None:
    """The format of calls that a template speaks of; None where it speaks of neither."""
    if CALL_OPEN in template:
        return "hermes"
    return "llama" if PYTHON_TAG in template or "ipython" in template else None
