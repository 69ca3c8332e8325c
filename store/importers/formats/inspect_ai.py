"""Inspect: samples of a `.eval` archive, or a log as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ...records import FinishReason
from ..dialogue import is_messages, read_messages
from ..draft import Draft, RowError, number, text_of, without
from ..format import Format, Row, Where

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_ATTACHED = "attachment://"


def _is_sample(row: Row) -> bool:
    return all(name in row for name in ("id", "epoch", "input", "messages"))


def _is_log(row: Row) -> bool:
    return isinstance(row.get("samples"), list) and isinstance(row.get("eval"), Mapping)


def _matches(row: Row) -> bool:
    return _is_sample(row) or _is_log(row)


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    if _is_log(row):
        for sample in row["samples"]:
            if isinstance(sample, Mapping) and _is_sample(sample):
                yield _draft({**sample, "_header": row})
        return
    yield _draft(row)


def _draft(row: Row) -> Draft:
    attachments = row.get("attachments")
    messages = row["messages"]
    if isinstance(attachments, Mapping) and attachments:
        messages = [_attached(message, attachments) for message in messages]
    if not is_messages(messages):
        raise RowError("the sample has no messages")
    dialogue = read_messages(messages)
    scores = _scores(row.get("scores"))
    header = row.get("_header")
    about = header.get("eval") if isinstance(header, Mapping) else None
    task = about.get("task") if isinstance(about, Mapping) else None
    total_time = number(row.get("total_time"))
    # `events_data` holds the messages of the events once more.
    used = ("messages", "events", "events_data", "attachments", "_header", "epoch", "total_time")
    output = row.get("output") if isinstance(row.get("output"), Mapping) else {}
    draft = Draft(
        turns=dialogue.turns,
        prompt=dialogue.prompt,
        group=text_of(row["id"]),
        env=text_of(task)[:200],
        final_observation=dialogue.final_observation,
        duration_s=None if math.isnan(total_time) else total_time,
        fields={
            **without(row, (*used, "output")),
            "epoch": row["epoch"],
            # The choices repeat the last message.
            "output": without(output or {}, ("choices", "completion")),
            **({"system": dialogue.system} if dialogue.system else {}),
        },
    )
    if draft.turns:
        draft.turns[-1].finish_reason = _finish(output or {})
    if scores:
        first = next(iter(scores.values()))
        draft.set_episode_reward(first)
        if first in (0.0, 1.0):
            draft.is_success = bool(first)
            draft.reconstructed.add("score")
        if draft.turns:
            draft.turns[-1].info = {f"score/{name}": value for name, value in scores.items()}
    return draft


def _finish(output: Mapping[str, Any]) -> FinishReason:
    """How the last reply ended."""
    choices = output.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    reason = first.get("stop_reason") if isinstance(first, Mapping) else None
    known = {"stop": FinishReason.STOP, "max_tokens": FinishReason.LENGTH}
    return known.get(text_of(reason), FinishReason.UNKNOWN)


def _scores(scores: Any) -> dict[str, float]:
    """The scores that are numbers, or grades: C, P, I, N."""
    found = {}
    for name, score in scores.items() if isinstance(scores, Mapping) else ():
        value = score.get("value") if isinstance(score, Mapping) else None
        grade = _GRADES.get(value) if isinstance(value, str) else None
        result = number(value) if grade is None else grade
        if not math.isnan(result):
            found[str(name)] = result
    return found


def _attached(message: Any, attachments: Mapping[str, Any]) -> Any:
    """A message with its long texts, which Inspect keeps apart."""
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, str) and content.startswith(_ATTACHED):
        return {**message, "content": attachments.get(content[len(_ATTACHED) :], content)}
    return message


SAMPLES = Format(
    name="Inspect samples",
    trainer="Inspect",
    matches=_matches,
    drafts=_drafts,
    file_step=lambda where: None,
)
