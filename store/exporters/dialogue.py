"""An episode as messages, and the entry that says which part of the messages is which field.

The messages are for everybody: system, user, assistant, tool, as a chat template takes them. They
show what the policy saw, so a user message may have more than the observation, and a reply may
begin with the `<think>` that the prompt opened. The entry, under the key `echoscope`, points into
the messages where the stored texts stand; a text that cannot be found there is in the entry itself.
So every text of the run can be read back to the letter, and most texts are there once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from echoscope.text.replies import THINK_CLOSE, THINK_OPEN
from echoscope.text.strict_json import json_value
from echoscope.text.tool_calls import find_calls

from .source import Episode, Row

VERSION = 1
"""Of the entry."""
Message = dict[str, Any]

_EPISODE_FIELDS = (
    *("id", "split", "group_index", "sibling_index", "env_id", "tag", "env_seed", "noise_seed"),
    *("prompt_key", "task_key", "stop_reason", "is_success", "duration_s", "final_frame"),
    *("advantage", "kept", "drop_reason", "source", "extra"),
)
_TURN_FIELDS = (
    *("reward", "format_penalty", "is_valid", "is_effective", "finish_reason", "policy_version"),
    *("actions", "info", "shaping", "frame"),
)


@dataclass(slots=True)
class Dialogue:
    """The messages of an episode, and where its texts stand in them."""

    messages: list[Message] = field(default_factory=list)
    first_reply: int = 0
    """Index of the first reply: before it is the prompt."""
    last_reply: int = -1
    entry: dict[str, Any] = field(default_factory=dict)
    """What the messages alone do not say; JSON's own kinds."""

    @property
    def has_calls(self) -> bool:
        return any("tool_calls" in message for message in self.messages)


def dialogue_of(episode: Episode) -> Dialogue:
    """The messages of an episode with their entry."""
    out = Dialogue()
    turns: list[dict[str, Any]] = []
    waiting: list[tuple[str, Row]] = []
    for index, (turn, shown) in enumerate(zip(episode.turns, episode.shown, strict=True)):
        start = len(out.messages)
        if waiting:
            out.messages += _answers(waiting, turn["observation"])
        elif shown is not None:
            out.messages += [{"role": role, "content": text} for role, text in shown.messages]
        else:
            if not index and episode.system:
                out.messages.append({"role": "system", "content": episode.system})
            if turn["observation"] or not index:
                out.messages.append({"role": "user", "content": turn["observation"]})
        place = _place(out.messages, start, turn["observation"])
        opening = "" if shown is None else shown.opening
        waiting = _readable_calls(turn, f"{episode.id}-{index}")
        reply, texts = _reply(turn, opening, waiting)
        out.messages.append(reply)
        out.last_reply = len(out.messages) - 1
        if not index:
            out.first_reply = out.last_reply
        turns.append({"reply": out.last_reply, "observation": place, **texts, **_own(turn)})
    start = len(out.messages)
    final = episode.row["final_observation"]
    if final or any(call.get("result") for _, call in waiting):
        out.messages += _answers(waiting, final)
    out.entry = {"version": VERSION, **_fields(episode.row, _EPISODE_FIELDS), "turns": turns}
    if final:
        out.entry["final"] = _place(out.messages, start, final)
    return out


def _place(messages: Sequence[Message], start: int, text: str) -> Any:
    """[message, first character, end] of a text in the last messages; else the text itself."""
    if not text:
        return ""
    for index in range(len(messages) - 1, start - 1, -1):
        content = messages[index]["content"]
        at = content.rfind(text)
        if at >= 0:
            return [index, at, at + len(text)]
    return text


def _readable_calls(turn: Row, name: str) -> list[tuple[str, Row]]:
    """The tool calls of a turn with an id for each, if all of them can be read as calls."""
    calls = json.loads(turn["calls"]) if turn["calls"] else []
    is_bad = any(call.get("problem") or not call.get("name") for call in calls)
    return [] if is_bad else [(f"{name}-{place}", call) for place, call in enumerate(calls)]


def _reply(
    turn: Row, opening: str, calls: Sequence[tuple[str, Row]]
) -> tuple[Message, dict[str, Any]]:
    """The message of a reply, and how the entry finds the stored reply in it."""
    text = turn["response"]
    prefix = opening or _forced_think(turn)
    if not calls:
        message: Message = {"role": "assistant", "content": prefix + text}
        return message, ({"prefix": len(prefix)} if prefix else {})
    message = {
        "role": "assistant",
        "content": prefix + _without_calls(text),
        "tool_calls": [
            {
                "id": key,
                "type": "function",
                "function": {"name": call["name"], "arguments": call.get("arguments", "")},
            }
            for key, call in calls
        ],
    }
    return message, {"response": text}


def _forced_think(turn: Row) -> str:
    """What a reply lacks that begins inside its reasoning, because the prompt opened it.

    The place of the reasoning says so also of a reply that writes the tag once more.
    """
    text, start, end = turn["response"], turn["reasoning_start"], turn["reasoning_end"]
    if start == 0 and (end == len(text) or text.startswith(THINK_CLOSE, end)):
        return THINK_OPEN
    close = text.find(THINK_CLOSE)
    return THINK_OPEN if close >= 0 and THINK_OPEN not in text[:close] else ""


def _without_calls(text: str) -> str:
    """The words of a reply before its first call, in either way of spelling calls."""
    close = text.find(THINK_CLOSE)
    start = 0 if close < 0 else close + len(THINK_CLOSE)
    firsts = [
        found[0].chars[0]
        for found in (find_calls(text, start, "hermes"), find_calls(text, start, "llama"))
        if found
    ]
    return text[: min(firsts)].rstrip() if firsts else text


def _answers(calls: Sequence[tuple[str, Row]], observation: str) -> list[Message]:
    """What follows a reply: a result for each of its calls, then what else the world said."""
    rest = observation
    messages: list[Message] = []
    for key, call in calls:
        result = str(call.get("result") or "")
        messages.append(
            {"role": "tool", "tool_call_id": key, "name": call["name"], "content": result}
        )
        rest = rest.replace(result, "", 1) if result else rest
    if rest.strip():
        messages.append({"role": "user", "content": observation})
    return messages


def _own(turn: Row) -> dict[str, Any]:
    values = _fields(turn, _TURN_FIELDS)
    if not turn["format_penalty"]:
        values.pop("format_penalty", None)
    for name in ("reasoning", "answer"):
        if turn[f"{name}_start"] is not None:
            values[name] = [turn[f"{name}_start"], turn[f"{name}_end"]]
    if turn["calls"]:
        values["calls"] = json.loads(turn["calls"])
    return values


def _fields(row: Row, names: Sequence[str]) -> dict[str, Any]:
    """The fields of a row that say something: what is absent here is unknown or an empty list."""
    values: dict[str, Any] = json_value({name: row[name] for name in names})
    return {n: v for n, v in values.items() if v is not None and v != [] and v != {}}
