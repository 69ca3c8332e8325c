"""An episode as messages: system, user, assistant, tool, as a chat template takes them.

They show what the policy saw, so a user message may have more than the observation, and a reply may
begin with the `<think>` that the prompt opened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from echoscope.text.replies import THINK_CLOSE, THINK_OPEN
from echoscope.text.tool_calls import find_calls

from .source import EpisodeRows, Row

Message = dict[str, Any]


@dataclass(slots=True)
class EpisodeMessages:
    """The messages of an episode, and where its replies stand in them."""

    messages: list[Message] = field(default_factory=list)
    first_reply: int = 0
    """Index of the first reply: before it is the prompt."""
    last_reply: int = -1


def dialogue_of(episode: EpisodeRows) -> EpisodeMessages:
    """The messages of an episode."""
    out = EpisodeMessages()
    waiting: list[tuple[str, Row]] = []
    for index, (turn, prompt) in enumerate(zip(episode.turns, episode.prompts, strict=True)):
        if waiting:
            out.messages += _answers(waiting, turn["observation"])
        elif prompt is not None:
            out.messages += [{"role": role, "content": text} for role, text in prompt.messages]
        else:
            if not index and episode.system:
                out.messages.append({"role": "system", "content": episode.system})
            if turn["observation"] or not index:
                out.messages.append({"role": "user", "content": turn["observation"]})
        waiting = _readable_calls(turn, f"{episode.id}-{index}")
        out.messages.append(_reply(turn, "" if prompt is None else prompt.opening, waiting))
        out.last_reply = len(out.messages) - 1
        if not index:
            out.first_reply = out.last_reply
    final = episode.row["final_observation"]
    if final or any(call.get("result") for _, call in waiting):
        out.messages += _answers(waiting, final)
    return out


def _readable_calls(turn: Row, name: str) -> list[tuple[str, Row]]:
    """The tool calls of a turn with an id for each, if all of them can be read as calls."""
    calls = json.loads(turn["calls"]) if turn["calls"] else []
    is_bad = any(call.get("problem") or not call.get("name") for call in calls)
    return [] if is_bad else [(f"{name}-{number}", call) for number, call in enumerate(calls)]


def _reply(turn: Row, opening: str, calls: Sequence[tuple[str, Row]]) -> Message:
    text, prefix = turn["response"], opening or _forced_think(turn)
    if not calls:
        return {"role": "assistant", "content": prefix + text}
    return {
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
        calls[0].chars[0]
        for calls in (find_calls(text, start, "hermes"), find_calls(text, start, "llama"))
        if calls
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
