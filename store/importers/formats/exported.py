"""Episodes that `echoscope export` wrote: messages with the entry `echoscope`, read to the letter,
and the rows of a DuckDB file (`spooled/duckdb_tables.py`), which have tokens as well.

The entry says where in the messages each observation and each reply stands, and holds what messages
have no place for. It stands beside the messages, or in the metadata of an Inspect sample.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...records import (
    FinishReason,
    Span,
    Split,
    StopReason,
    ToolCall,
    Trajectory,
    Turn,
    parse_trajectory_id,
)
from ..draft import (
    Draft,
    RowError,
    inner,
    number,
    number_or_none,
    numbers_of,
    optional_text,
    text_of,
    truth,
    whole,
)
from ..format import Format, Row, Where, has_keys, no_file_step

VERSION = 1
_PICTURES = ("prompt_images", "prompt_image_starts", "prompt_image_ends")
_NOT_FITTING = (
    "its messages do not fit its entry `echoscope`: somebody changed them; remove that entry from "
    "the row to import the messages alone"
)


def _entry(row: Row) -> Mapping[str, Any] | None:
    """The entry of a row; None where it has none that can be read."""
    own = row.get("echoscope")
    value = _parsed(inner(row, "metadata", "echoscope") if own is None else own)
    is_entry = isinstance(inner(value, "turns"), list) and value.get("version") == VERSION
    return value if is_entry else None


def _parsed(value: Any) -> Any:
    """A value that a table holds as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return None


_is_of_tables = has_keys(echoscope_rows=Mapping)
"""Whether a row holds the rows of one episode, from the tables of a run."""


def _matches(row: Row) -> bool:
    return _is_of_tables(row) or ("messages" in row and _entry(row) is not None)


def _step(row: Row) -> int | None:
    of_tables = row["echoscope_rows"]["trajectory"] if _is_of_tables(row) else None
    entry = of_tables or _entry(row) or {}
    try:
        return parse_trajectory_id(text_of(entry.get("id")))[1]
    except ValueError:
        return None


def _draft_of_rows(rows: Mapping[str, Any]) -> Draft:
    # Not at the start: it needs pyarrow, and a metrics file does without.
    from ...query.rows import outcome_from_rows, trajectory_from_rows

    row, tokens = rows["trajectory"], rows["tokens"]
    # Pictures are not read from the file, and their places in the prompt mean nothing without them.
    tokens = [{**entry, **dict.fromkeys(_PICTURES)} for entry in tokens]
    record = trajectory_from_rows(row, rows["turns"], tokens)
    outcome = outcome_from_rows(row, tokens)
    draft = Draft(
        turns=(), group=f"{record.split}-{record.group_index}", split=record.split, record=record
    )
    if outcome is not None:
        draft.advantage, draft.advantages = outcome.advantage, outcome.advantages
        draft.is_kept, draft.drop_reason = outcome.kept, outcome.drop_reason
        draft.trainer_logprobs = outcome.trainer_logprobs
        draft.reference_logprobs = outcome.ref_logprobs
        draft.information = outcome.information
    return draft


def _drafts(row: Row, where: Where) -> Iterator[Draft]:
    if _is_of_tables(row):
        yield _draft_of_rows(row["echoscope_rows"])
        return
    entry, messages = _entry(row), _parsed(row["messages"])
    assert entry is not None
    if not isinstance(messages, list):
        raise RowError(_NOT_FITTING)
    texts = [_content(message) for message in messages]
    turns = tuple(_turn(turn, texts, index) for index, turn in enumerate(entry["turns"]))
    split, step, index = parse_trajectory_id(text_of(entry.get("id")))
    group = whole(entry.get("group_index"))
    record = Trajectory(
        step=step,
        split=split,
        index=index,
        group_index=0,
        sibling_index=0,
        env_id=text_of(entry.get("env_id")),
        tag=text_of(entry.get("tag")),
        env_seed=_seed(entry.get("env_seed")),
        noise_seed=_seed(entry.get("noise_seed")),
        prompt_key=text_of(entry.get("prompt_key")),
        turns=turns,
        final_observation=_text(entry.get("final", ""), texts),
        final_frame=optional_text(entry.get("final_frame")),
        stop_reason=StopReason(entry.get("stop_reason", "unknown")),
        is_success=truth(entry.get("is_success")),
        duration_s=number_or_none(entry.get("duration_s")),
        source=optional_text(entry.get("source")),
        task_key=optional_text(entry.get("task_key")),
        extra=optional_text(entry.get("extra")),
    )
    yield Draft(
        turns=(),
        group=f"{split}-{group}",
        split=Split(split),
        advantage=number_or_none(entry.get("advantage")),
        is_kept=truth(entry.get("kept")),
        drop_reason=optional_text(entry.get("drop_reason")),
        record=record,
    )


def _content(message: Any) -> str:
    content = message.get("content") if isinstance(message, Mapping) else None
    return content if isinstance(content, str) else ""


def _text(place: Any, texts: Sequence[str]) -> str:
    """A text of the entry, or the part of a message that it points to."""
    if isinstance(place, str):
        return place
    if not isinstance(place, list) or len(place) != 3:
        raise RowError(_NOT_FITTING)
    message, start, end = place
    if end is None:
        raise RowError(_NOT_FITTING)
    return _part(message, start, end, texts)


def _response(turn: Mapping[str, Any], texts: Sequence[str]) -> str:
    if isinstance(turn.get("response"), str):
        return str(turn["response"])
    return _part(turn.get("reply"), turn.get("prefix", 0), None, texts)


def _part(message: Any, start: Any, end: Any, texts: Sequence[str]) -> str:
    """A part of a message, to its end where `end` is None."""
    index, first = whole(message), whole(start)
    if index is None or first is None or not 0 <= index < len(texts):
        raise RowError(_NOT_FITTING)
    last = len(texts[index]) if end is None else whole(end)
    if last is None or not 0 <= first <= last <= len(texts[index]):
        raise RowError(_NOT_FITTING)
    return texts[index][first:last]


def _span(value: Any) -> Span | None:
    if value is None:
        return None
    start, end = (whole(bound) for bound in value)
    if start is None or end is None:
        raise RowError(_NOT_FITTING)
    return start, end


def _turn(turn: Any, texts: Sequence[str], index: int) -> Turn:
    calls = turn.get("calls") or []
    return Turn(
        index=index,
        observation=_text(turn.get("observation", ""), texts),
        response=_response(turn, texts),
        reasoning_chars=_span(turn.get("reasoning")),
        answer_chars=_span(turn.get("answer")),
        actions=tuple(text_of(action) for action in turn.get("actions") or ()),
        reward=number(turn.get("reward")),
        format_penalty=number_or_none(turn.get("format_penalty")) or 0.0,
        is_valid=truth(turn.get("is_valid")),
        is_effective=truth(turn.get("is_effective")),
        finish_reason=FinishReason(turn.get("finish_reason", "unknown")),
        policy_version=_version(turn.get("policy_version")),
        frame=optional_text(turn.get("frame")),
        info=numbers_of(turn.get("info")),
        shaping=numbers_of(turn.get("shaping")),
        calls=tuple(
            ToolCall(
                name=text_of(call.get("name")),
                arguments=text_of(call.get("arguments")),
                result=text_of(call.get("result")),
                problem=text_of(call.get("problem")),
            )
            for call in calls
        ),
    )


def _seed(value: Any) -> int | None:
    """A whole number of 64 bits: seeds are often hashes."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and -(2**63) <= value < 2**63 else None


def _version(value: Any) -> int | None:
    version = whole(value)
    return version if version is not None and 0 <= version < 2**31 else None


EPISODES = Format(
    name="Echoscope export",
    trainer="Echoscope",
    matches=_matches,
    drafts=_drafts,
    step=_step,
    file_step=no_file_step,
)
