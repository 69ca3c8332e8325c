"""Inspect: a log as one JSON document, or the samples of a `.eval` archive as a log each.

A group is a sample, and a sibling one of its epochs. Logs that `echoscope export --to inspect`
wrote, and logs of our worlds played in Inspect, say in the metadata of a sample what the episode
was.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from .. import read
from ..dialogue import is_messages, read_messages
from ..draft import Draft, RowError
from ..format import Format, Row, Where, has_keys, no_file_step
from .inspect_metadata import is_played_in_inspect, split_of, whole_draft

_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Correct, partly, incorrect, no answer."""
_ATTACHED = "attachment://"
_USED = ("messages", "events", "events_data", "attachments", "total_time", "output")
_OURS = "echoscope/"
"""How the name of a sample begins that we wrote."""


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    """The episodes of a log, siblings together; what one of them lacks is raised after the rest."""
    problem: RowError | None = None
    env = read.name(read.inner(row, "eval", "task"))
    for sample in sorted(read.objects(row["samples"]), key=_place):
        try:
            yield _sample_draft(sample, env)
        except RowError as error:
            problem = problem or error
    if problem is not None:
        raise problem


def _place(sample: Row) -> tuple[list[tuple[int, int, str]], int]:
    """Sorts samples by their names, and each by its epochs: an archive has them as they ended."""
    return read.natural(read.text(sample.get("id"))), read.whole(sample.get("epoch")) or 0


def _sample_draft(sample: Row, env: str) -> Draft:
    if is_played_in_inspect(sample):
        return whole_draft(sample)
    draft = _draft(sample)
    draft.env = env
    if _is_ours(sample):
        _set_ours(draft, sample["metadata"], _scores(sample))
    return draft


def _draft(sample: Row) -> Draft:
    messages = _attached(sample.get("messages"), sample.get("attachments"))
    if not is_messages(messages):
        raise RowError("the sample has no messages")
    output, scores = sample.get("output"), _scores(sample)
    more = read.without(output, ("choices", "completion")) if isinstance(output, Mapping) else {}
    draft = read_messages(messages).draft(
        {**read.without(sample, _USED), "output": more},
        group=read.text(sample.get("id")),
        duration_s=read.number_or_none(sample.get("total_time")),
    )
    choices = read.objects(read.inner(output, "choices"))
    if draft.turns and choices:
        draft.turns[-1].finish_reason = read.finish(choices[0].get("stop_reason"))
    first = next(iter(scores.values()), math.nan)
    draft.set_episode_reward(first)
    draft.is_success = read.truth(first)
    if draft.is_success is not None:
        draft.reconstructed.add("score")
    draft.add_info({f"score/{name}": value for name, value in scores.items()})
    return draft


def _scores(sample: Row) -> dict[str, float]:
    """The scores that are numbers or grades, by name."""
    scores = sample.get("scores")
    named = scores if isinstance(scores, Mapping) else {}
    values = {str(name): read.inner(score, "value") for name, score in named.items()}
    return read.numbers(
        {n: _GRADES.get(v, read.number(v)) if isinstance(v, str) else v for n, v in values.items()}
    )


def _attached(messages: Any, attachments: Any) -> Any:
    """The messages with their long texts, which Inspect keeps apart."""
    if not isinstance(messages, list) or not isinstance(attachments, Mapping):
        return messages
    return [
        {**message, "content": attachments.get(content.removeprefix(_ATTACHED), content)}
        if (content := read.text(read.inner(message, "content"))).startswith(_ATTACHED)
        else message
        for message in messages
    ]


def _is_ours(sample: Row) -> bool:
    return read.text(sample.get("uuid")).startswith(_OURS) and isinstance(
        sample.get("metadata"), Mapping
    )


def _set_ours(draft: Draft, metadata: Row, scores: Mapping[str, float]) -> None:
    draft.reconstructed.discard("score")
    draft.is_success = read.truth(scores.get("success"))
    draft.set_turn_rewards(metadata.get("turn_rewards"), scores.get("return", math.nan))
    draft.split = split_of(metadata)
    draft.env = read.name(metadata.get("env"))
    draft.stop_reason = read.stop(metadata.get("stop_reason"))
    for turn in draft.turns:
        turn.info = {}


def _step(row: Row) -> int | None:
    """The step of a sample that we wrote or played; Inspect knows none."""
    first = next(iter(read.objects(row["samples"])), {})
    is_known = _is_ours(first) or is_played_in_inspect(first)
    return read.whole(first["metadata"].get("step")) if is_known else None


LOGS = Format(
    name="Inspect samples",
    trainer="Inspect",
    matches=has_keys(samples=list, eval=Mapping),
    drafts=_drafts,
    step=_step,
    file_step=no_file_step,
)
