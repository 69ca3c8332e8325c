"""Inspect: samples of a `.eval` archive, or a log as one JSON document."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from ..dialogue import is_messages, read_messages
from ..draft import (
    Draft,
    RowError,
    finish_of,
    inner,
    name_of,
    number,
    number_or_none,
    objects_of,
    text_of,
    without,
)
from ..format import Format, Row, Where, has_keys, no_file_step

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_ATTACHED = "attachment://"


_is_sample = has_keys("id", "epoch", "input", "messages")
_is_log = has_keys(samples=list, eval=Mapping)


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    if not _is_log(row):
        yield _draft(row)
        return
    for sample in row["samples"]:
        if isinstance(sample, Mapping) and _is_sample(sample):
            yield _draft({**sample, "_header": row})


def _draft(row: Row) -> Draft:
    attachments = row.get("attachments")
    messages = row["messages"]
    if isinstance(attachments, Mapping) and attachments:
        messages = [_attached(message, attachments) for message in messages]
    if not is_messages(messages):
        raise RowError("the sample has no messages")
    scores = _scores(row.get("scores"))
    output = row.get("output") if isinstance(row.get("output"), Mapping) else {}
    # `events_data` holds the messages of the events once more.
    used = ("messages", "events", "events_data", "attachments", "_header", "epoch", "total_time")
    draft = read_messages(messages).draft(
        {
            **without(row, (*used, "output")),
            "epoch": row["epoch"],
            # The choices repeat the last message.
            "output": without(output or {}, ("choices", "completion")),
        },
        group=text_of(row["id"]),
        env=name_of(inner(row.get("_header"), "eval", "task")),
        duration_s=number_or_none(row.get("total_time")),
    )
    if draft.turns:
        choices = objects_of(inner(output, "choices"))
        draft.turns[-1].finish_reason = finish_of(inner(next(iter(choices), None), "stop_reason"))
    if scores:
        first = next(iter(scores.values()))
        draft.set_episode_reward(first)
        if first in (0.0, 1.0):
            draft.is_success = bool(first)
            draft.reconstructed.add("score")
        draft.add_info({f"score/{name}": value for name, value in scores.items()})
    return draft


def _scores(scores: Any) -> dict[str, float]:
    """The scores that are numbers, or grades: C, P, I, N."""
    values = {
        str(name): inner(score, "value")
        for name, score in (scores.items() if isinstance(scores, Mapping) else ())
    }
    graded = {
        name: _GRADES.get(value, number(value)) if isinstance(value, str) else number(value)
        for name, value in values.items()
    }
    return {name: value for name, value in graded.items() if not math.isnan(value)}


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
    matches=lambda row: _is_sample(row) or _is_log(row),
    drafts=_drafts,
    file_step=no_file_step,
)
