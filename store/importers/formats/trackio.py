"""trackio: traces, conversations that a trainer logged with `trackio.Trace`.

A trace has messages and any metadata. Rewards, success and groups are read from the metadata under
the names that rows of messages have; our export `trackio` writes such names. All metadata is kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ...records import Split, StopReason
from ..dialogue import is_messages
from ..draft import Draft, RowError, number, text_of, whole
from ..format import Format, Row, Where
from . import openai

_KNOWN_STOPS = {reason.value: reason for reason in StopReason}


def _matches(row: Row) -> bool:
    return isinstance(row.get("trackio_trace"), Mapping) and "messages" in row


def _step(row: Row) -> int | None:
    return whole(row["trackio_trace"].get("step"))


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    if not is_messages(row["messages"]):
        raise RowError("the trace has no messages")
    found = row.get("metadata")
    metadata = dict(found) if isinstance(found, Mapping) else {}
    flat = {**metadata, "messages": row["messages"]}
    if "reward" not in flat and not math.isnan(number(flat.get("return"))):
        flat["reward"] = flat["return"]
    duration = number(metadata.get("duration_ms"))
    for draft in openai.MESSAGES.drafts(flat, where):
        system = {k: v for k, v in draft.fields.items() if k == "system"}
        yield replace(
            draft,
            split=Split.EVAL if metadata.get("split") == "eval" else Split.IMPORT,
            stop_reason=_KNOWN_STOPS.get(text_of(metadata.get("stop_reason")), StopReason.UNKNOWN),
            duration_s=None if math.isnan(duration) else duration / 1000,
            fields={"trace": dict(row["trackio_trace"]), "metadata": metadata, **system},
        )


TRACES = Format(
    name="trackio traces",
    trainer="trackio",
    matches=_matches,
    drafts=_drafts,
    step=_step,
    file_step=lambda where: None,
)
