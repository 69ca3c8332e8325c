"""Messages, or one flat text, as turns.

Messages keep their roles, so turns are exact. A flat text with its special tokens can be split
exactly, too. A flat text without them can only be split where a role name stands alone on its line,
as chat templates of the Qwen kind leave it; that is a guess, and the caller must mark it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, TypeGuard

from echoscope.text.strict_json import json_value

from ..records import ToolCall
from . import read
from .draft import Draft, DraftTurn, RowError

_CHATML = re.compile(r"<\|im_start\|>(\w+)\n?|<\|im_end\|>\n?")
_HEADERS = re.compile(r"<\|start_header_id\|>(\w+)<\|end_header_id\|>\n{0,2}|<\|eot_id\|>")
_TURNS = re.compile(r"<start_of_turn>(\w+)\n?|<end_of_turn>\n?")
_MARKS = (_CHATML, _HEADERS, _TURNS)
_ENDS = re.compile(r"(?:<\|endoftext\|>|<\|begin_of_text\|>|<bos>|<eos>|</s>|<s>|<pad>)+")
_BARE = re.compile(r"(?m)^(user|assistant|tool|system)[ \t]*$\n?")
_NOT_IN_A_ROW = (("assistant", "assistant"), ("system", "system"), ("assistant", "system"))
_ROLE_NAMES = {"model": "assistant", "human": "user", "gpt": "assistant", "ipython": "tool"}


@dataclass(slots=True)
class Dialogue:
    """The turns of a conversation, and what stood around them."""

    system: str = ""
    turns: list[DraftTurn] = field(default_factory=list)
    final_observation: str = ""

    @property
    def prompt(self) -> str:
        """System message and first observation: equal for siblings."""
        first = self.turns[0].observation if self.turns else self.final_observation
        return f"{self.system}\n\n{first}" if self.system else first

    def draft(
        self,
        fields: Mapping[str, Any],
        *,
        reward: float = math.nan,
        is_guess: bool = False,
        **values: Any,
    ) -> Draft:
        """The episode of this conversation.

        Args:
            fields: What has no column of ours. The system message is added.
            reward: Of the whole episode; NaN where it is not known, or set by turn.
            is_guess: The turns were split at role names.
            values: Further fields of `Draft`.
        """
        draft = Draft(
            turns=self.turns,
            final_observation=values.pop("final_observation", self.final_observation),
            prompt=values.pop("prompt", self.prompt),
            fields={**fields, **({"system": self.system} if self.system else {})},
            reconstructed={"turns"} if is_guess else set(),
            **values,
        )
        draft.set_episode_reward(reward)
        return draft


def is_messages(value: Any) -> TypeGuard[list[Mapping[str, Any]]]:
    """Whether a value is a list of messages with roles."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(m, Mapping) and isinstance(m.get("role"), str) for m in value)
    )


def read_messages(messages: Sequence[Mapping[str, Any]]) -> Dialogue:
    """Each message of the assistant ends a turn; what comes before it is the observation.

    Raises:
        RowError: something in the list is no message.
    """
    out = Dialogue()
    waiting: list[str] = []
    place_of_call: dict[str, int] = {}
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RowError("a message has no role")
        role = _ROLE_NAMES.get(message["role"], message["role"])
        if role == "assistant":
            calls = _calls(message)
            out.turns.append(
                DraftTurn(
                    observation="\n\n".join(waiting),
                    response=reply_text(message),
                    calls=tuple(ToolCall(name=name, arguments=text) for name, text, _ in calls),
                )
            )
            waiting = []
            place_of_call = {
                identity: call_index for call_index, (_, _, identity) in enumerate(calls)
            }
            continue
        text = content_text(message.get("content"))
        if role in ("system", "developer") and not out.turns and not waiting:
            out.system = f"{out.system}\n\n{text}" if out.system else text
            continue
        waiting.append(text)
        call_index = place_of_call.get(str(message.get("tool_call_id")))
        if call_index is not None and out.turns:
            calls_before = list(out.turns[-1].calls)
            calls_before[call_index] = replace(calls_before[call_index], result=text)
            out.turns[-1].calls = tuple(calls_before)
    out.final_observation = "\n\n".join(waiting)
    return out


def content_text(content: Any) -> str:
    """The text of a message; what is no text (an image, say) as its kind in brackets."""
    if not isinstance(content, list):
        return read.text(content)
    parts = []
    for part in content:
        if isinstance(part, str):
            parts.append(part)
        elif isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts.append(part["text"])
        elif isinstance(part, Mapping) and isinstance(part.get("reasoning"), str):
            parts.append(f"<think>{part['reasoning']}</think>")
        elif isinstance(part, Mapping):
            parts.append(f"[{str(part.get('type', 'part'))[:40]}]")
    return "\n".join(parts)


def reply_text(message: Mapping[str, Any]) -> str:
    """What the policy said: reasoning of a field of its own in tags, calls as JSON in tags."""
    text = content_text(message.get("content"))
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    if isinstance(reasoning, str) and reasoning.strip() and "<think>" not in text:
        text = f"<think>{reasoning}</think>{text}"
    for name, arguments, _ in _calls(message):
        call = f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'
        text = f"{text}\n{call}" if text else call
    return text


def _calls(message: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(name, arguments as text, id) of each tool call."""
    calls = message.get("tool_calls")
    out = []
    for call in calls if isinstance(calls, list) else []:
        if isinstance(call, str):  # verifiers stores each call as JSON text
            try:
                call = json.loads(call)
            except (ValueError, RecursionError):
                continue
        if not isinstance(call, Mapping):
            continue
        function = call.get("function")
        inner = function if isinstance(function, Mapping) else call
        name = function if isinstance(function, str) else inner.get("name")
        arguments = inner.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(json_value(arguments if arguments is not None else {}))
        out.append((str(name or ""), arguments, str(call.get("id") or "")))
    return out


def has_marks(text: str) -> bool:
    """Whether a flat text still has the special tokens between its messages."""
    return any(mark.search(text) for mark in _MARKS)


def split_marked(text: str, role: str = "assistant") -> list[dict[str, str]]:
    """Messages of a flat text with special tokens; exact.

    Args:
        role: Who speaks before the first token.
    """
    mark = min(_MARKS, key=lambda m: s.start() if (s := m.search(text)) else len(text) + 1)
    head, *rest = mark.split(text)
    messages: list[dict[str, str]] = []
    _add(messages, role, head)
    for name, body in zip(rest[::2], rest[1::2], strict=True):  # a token that closes has no name
        _add(messages, _ROLE_NAMES.get(name, name) if name else "", body)
    return messages


def _add(messages: list[dict[str, str]], role: str, text: str) -> None:
    text = _ENDS.sub("", text)
    if role and (text.strip() or role == "assistant") and not (not text and not messages):
        messages.append({"role": role, "content": text})


def split_bare(text: str, role: str) -> list[dict[str, str]] | None:
    """Messages of a flat text whose special tokens are gone, at lines that are a role name.

    A guess. None where the role names do not follow each other as in a conversation: then the text
    is better left whole.

    Args:
        role: Who speaks before the first such line.
    """
    head, *rest = _BARE.split(text)
    speakers, bodies = [role, *rest[::2]], [head, *rest[1::2]]
    if any(pair in _NOT_IN_A_ROW for pair in pairwise(speakers)):
        return None
    bodies[:-1] = [body.removesuffix("\n") for body in bodies[:-1]]
    return [
        {"role": speaker or "user", "content": body}
        for speaker, body in zip(speakers, bodies, strict=True)
        if body.strip() or speaker == "assistant"
    ]


def read_flat(prompt: str, response: str) -> tuple[Dialogue, bool]:
    """Turns of a rollout that was dumped as two texts, and whether the split is a guess.

    Args:
        prompt: All before the first sampled token.
        response: All after it, observations of later turns included.
    """
    if has_marks(prompt) or has_marks(response):
        head, tail = split_marked(prompt, "user"), split_marked(response, "assistant")
        return read_messages(_joined(head, tail, response)), False
    before, after = split_bare(prompt, ""), split_bare(response, "assistant")
    # A response with an observation and no reply to it is more likely a text with such a word.
    replies = [m for m in after or () if m["role"] == "assistant"]
    is_split = len(replies) > 1 and after is not None and after[0]["role"] == "assistant"
    head = [{"role": "user", "content": prompt}] if before is None else before
    return read_messages(_joined(head, after if is_split else None, response)), is_split


def _joined(
    head: list[dict[str, str]], tail: list[dict[str, str]] | None, response: str
) -> list[dict[str, str]]:
    """Prompt and response as one conversation; what the prompt began of the reply belongs to it."""
    tail = tail or [{"role": "assistant", "content": response}]
    if head and head[-1]["role"] == "assistant" and tail[0]["role"] == "assistant":
        begun = head[-1]["content"]
        first = {"role": "assistant", "content": begun + tail[0]["content"]}
        tail = [first if begun.strip() else tail[0], *tail[1:]]
        head = head[:-1]
    return [*head, *tail]
