"""Records as rows with the columns of `schema.py`, and back: the only place that does either.

A field and its column have one name, so most values are copied by name. What is written out here
are the exceptions: tokens, which are stored without what the turn before holds, spans, pictures,
which are named by their hash, and what is JSON text in its column.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from operator import attrgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from echoscope.text.pictures import picture_key

from ..records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    CheckpointRecord,
    Command,
    CommandAck,
    CommandAction,
    CommandOutcome,
    DiagnosticRecord,
    FinishReason,
    IntArray,
    SettingsRecord,
    Span,
    Split,
    StopReason,
    Support,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
    parse_trajectory_id,
)
from ..schema import TABLES, arrow_schema

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

OUTCOME_ARRAYS = ("advantages", "trainer_logprobs", "ref_logprobs", "information")
"""Per-token fields of `TrajectoryOutcome`, columns of `tokens` under the same names."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_INT64 = np.iinfo(np.int64)
_NUMBERS = frozenset([bool, int, float])

TurnRow = tuple[Trajectory, Turn]
_Record = TypeVar("_Record", bound="DataclassInstance")


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD: UTF-8 has no way to write one.

    The number of characters does not change, so spans stay right.
    """
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def plain(value: Any) -> Any:
    """`value` fit for strict JSON: NaN and infinities as text, lone surrogates replaced."""
    if isinstance(value, str):
        return clean_text(str(value))  # a member of an enumeration becomes its text
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return value


def _stored(value: Any) -> Any:
    """A field of a record as its column holds it."""
    if value is None or type(value) in _NUMBERS:  # most fields, and `Mapping` is slow to ask
        return value
    if isinstance(value, str):
        return clean_text(str(value))  # a member of an enumeration becomes its text
    if isinstance(value, bytes):
        return picture_key(value)
    if isinstance(value, Mapping):
        return [(clean_text(name), float(number)) for name, number in value.items()]
    if isinstance(value, tuple):
        return [clean_text(text) for text in value]
    return value


def _known(value: float) -> float | None:
    """None for NaN: a reward that nobody wrote down is absent, and a mean in SQL leaves it out."""
    return None if math.isnan(value) else value


def shared_prefix(previous: IntArray | None, prompt: IntArray) -> int:
    """Number of leading tokens of `prompt` that repeat `previous`."""
    if previous is None:
        return 0
    size = min(len(previous), len(prompt))
    differs = np.flatnonzero(previous[:size] != prompt[:size])
    return int(differs[0]) if len(differs) else size


def check_trajectory(trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> None:
    """Refuse what the columns cannot hold, in the caller's thread.

    Raises:
        ValueError: a seed outside 64 bits, or outcome arrays that do not align with the turns.
    """
    for name in ("env_seed", "noise_seed"):
        seed = getattr(trajectory, name)
        if seed is not None and not _INT64.min <= seed <= _INT64.max:
            raise ValueError(f"{trajectory.id}: {name} is {seed}, but must fit a signed 64-bit int")
    if outcome is None:
        return
    tokens = [turn.response_tokens for turn in trajectory.turns]
    sizes = [0 if ids is None else len(ids) for ids in tokens]
    for name in OUTCOME_ARRAYS:
        arrays = getattr(outcome, name)
        if arrays is not None and [len(array) for array in arrays] != sizes:
            raise ValueError(
                f"{trajectory.id}: {name} has lengths {[len(a) for a in arrays]}, but the turns "
                f"have {sizes} response tokens"
            )


def _table(name: str, records: Sequence[Any], columns: Mapping[str, Any]) -> pa.Table:
    """One row per record: a column that is not given holds the field of its name."""
    schema = arrow_schema(name)
    of_fields = {}
    for field in schema:
        if field.name not in columns:
            values = map(attrgetter(field.name), records)
            is_number = pa.types.is_primitive(field.type)
            of_fields[field.name] = [*values] if is_number else [*map(_stored, values)]
    return pa.Table.from_pydict({**columns, **of_fields}, schema=schema)


def _step_columns(run_id: str, attempt: int, steps: Sequence[int]) -> dict[str, Any]:
    return {"run_id": [run_id] * len(steps), "step": steps, "attempt": [attempt] * len(steps)}


def trajectories_table(
    run_id: str,
    attempt: int,
    trajectories: Sequence[Trajectory],
    outcomes: Mapping[str, TrajectoryOutcome],
) -> pa.Table:
    """One row per trajectory; outcome columns are NULL where there is no outcome."""
    ids = [t.id for t in trajectories]
    joined = [outcomes.get(identity) for identity in ids]
    columns = _step_columns(run_id, attempt, [t.step for t in trajectories]) | {"id": ids}
    columns |= {
        name: [None if o is None else _stored(getattr(o, name)) for o in joined]
        for name in ("advantage", "kept", "drop_reason")
    }
    columns |= {
        "env_return": [_known(t.env_return) for t in trajectories],
        "episode_return": [_known(t.episode_return) for t in trajectories],
        "reward_terms": [
            [term for term in _stored(t.reward_terms) if not math.isnan(term[1])]
            for t in trajectories
        ],
    }
    return _table("trajectories", trajectories, columns)


def images_of(trajectories: Iterable[Trajectory]) -> dict[str, bytes]:
    """The different pictures of trajectories by key, in the order in which they came."""
    images: dict[str, bytes] = {}
    for trajectory in trajectories:
        for png in (*(turn.image for turn in trajectory.turns), trajectory.final_image):
            if png is not None:
                images.setdefault(picture_key(png), png)
    return images


def images_table(run_id: str, attempt: int, step: int, images: Mapping[str, bytes]) -> pa.Table:
    """One row per picture."""
    columns = _step_columns(run_id, attempt, [step] * len(images))
    return _table("images", (), columns | {"key": list(images), "png": list(images.values())})


def _turn_columns(run_id: str, attempt: int, rows: Sequence[TurnRow]) -> dict[str, Any]:
    columns = _step_columns(run_id, attempt, [t.step for t, _ in rows])
    columns["trajectory_id"] = [t.id for t, _ in rows]
    columns["turn"] = [turn.index for _, turn in rows]
    return columns


def _span_columns(name: str, spans: Sequence[Span | None]) -> dict[str, list[int | None]]:
    return {
        f"{name}_start": [None if span is None else span[0] for span in spans],
        f"{name}_end": [None if span is None else span[1] for span in spans],
    }


def turns_table(run_id: str, attempt: int, trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row per turn."""
    rows = [(t, turn) for t in trajectories for turn in t.turns]
    turns = [turn for _, turn in rows]
    columns = _turn_columns(run_id, attempt, rows)
    columns |= _span_columns("reasoning", [turn.reasoning_chars for turn in turns])
    columns |= _span_columns("answer", [turn.answer_chars for turn in turns])
    columns["reward"] = [_known(turn.reward) for turn in turns]
    columns["calls"] = [
        json.dumps(plain([asdict(call) for call in turn.calls])) if turn.calls else None
        for turn in turns
    ]
    return _table("turns", turns, columns)


def _calls(text: str | None) -> tuple[ToolCall, ...]:
    rows = [] if text is None else json.loads(text)
    return tuple(
        ToolCall(**{f.name: str(row.get(f.name, "")) for f in fields(ToolCall)}) for row in rows
    )


def tokens_table(
    run_id: str,
    attempt: int,
    trajectories: Sequence[Trajectory],
    outcomes: Mapping[str, TrajectoryOutcome],
) -> pa.Table:
    """One row per turn that has tokens.

    A prompt is stored without the tokens that it repeats from the turn before (its prompt and its
    response), or a trajectory of K turns would take K times the space.
    """
    rows: list[TurnRow] = []
    prefixes: list[int] = []
    prompts: list[IntArray] = []
    for trajectory in trajectories:
        previous: IntArray | None = None
        for turn in trajectory.turns:
            if turn.prompt_tokens is None or turn.response_tokens is None:
                previous = None
                continue
            prompt = turn.prompt_tokens
            prefix = shared_prefix(previous, prompt)
            rows.append((trajectory, turn))
            prefixes.append(prefix)
            prompts.append(prompt[prefix:])
            if turn is not trajectory.turns[-1]:
                previous = np.concatenate([prompt, turn.response_tokens])
    turns = [turn for _, turn in rows]
    supports = [turn.support for turn in turns]
    columns = _turn_columns(run_id, attempt, rows)
    columns |= _span_columns("reasoning", [turn.reasoning_span for turn in turns])
    columns |= {
        "prompt_prefix": prefixes,
        "prompt_tokens": prompts,
        "support_sizes": [None if s is None else s.sizes for s in supports],
        "support_tokens": [None if s is None else s.tokens for s in supports],
    }
    joined = [outcomes.get(identity) for identity in columns["trajectory_id"]]
    for name in OUTCOME_ARRAYS:
        pairs = zip(joined, turns, strict=True)
        columns[name] = [_outcome_array(outcome, name, turn) for outcome, turn in pairs]
    return _table("tokens", turns, columns)


def _outcome_array(
    outcome: TrajectoryOutcome | None, name: str, turn: Turn
) -> NDArray[np.float32] | None:
    arrays = None if outcome is None else getattr(outcome, name)
    # Arrow takes the values of an array of its own type without a Python object for each.
    return None if arrays is None else np.asarray(arrays[turn.index], dtype=np.float32)


def diagnostics_table(run_id: str, attempt: int, records: Sequence[DiagnosticRecord]) -> pa.Table:
    """One row per record."""
    columns = _step_columns(run_id, attempt, [record.step for record in records])
    columns |= {
        "arrays": [[(n, a.ravel()) for n, a in record.arrays.items()] for record in records],
        "shapes": [[(n, list(a.shape)) for n, a in record.arrays.items()] for record in records],
    }
    return _table("diagnostics", records, columns)


Row = Mapping[str, Any]


def rebuilt(record: type[_Record], row: Row, **others: Any) -> _Record:
    """A record from its row; `others` are the fields that differ from the column of their name."""
    names = record.__dataclass_fields__
    return record(**{name: row[name] for name in names if name in row} | others)


def _span(row: Row, name: str) -> Span | None:
    start, end = row[f"{name}_start"], row[f"{name}_end"]
    return None if start is None else (start, end)


def image_keys(rows: Iterable[Row]) -> set[str]:
    """The pictures that rows of `trajectories` and `turns` name."""
    return {key for row in rows for key in (row.get("image"), row.get("final_image")) if key}


def trajectory_from_rows(
    row: Row,
    turns: Sequence[Row],
    tokens: Sequence[Row],
    images: Mapping[str, bytes] = MappingProxyType({}),
) -> Trajectory:
    """One trajectory from its row, its turns in order and the token rows of those turns.

    Args:
        images: pictures by key; one that is not there is left out.
    """
    tokens_by_turn = {entry["turn"]: entry for entry in tokens}
    rebuilt_turns: list[Turn] = []
    previous: IntArray | None = None
    for turn in turns:
        entry = tokens_by_turn.get(turn["turn"])
        values = {} if entry is None else _token_fields(turn, entry, previous)
        previous = (
            np.concatenate([values["prompt_tokens"], values["response_tokens"]]) if values else None
        )
        rebuilt_turns.append(_turn(turn, values, images))
    _, step, index = parse_trajectory_id(row["id"])
    return rebuilt(
        Trajectory,
        row,
        step=step,
        index=index,
        split=Split(row["split"]),
        stop_reason=StopReason(row["stop_reason"]),
        turns=tuple(rebuilt_turns),
        final_image=images.get(row["final_image"] or ""),
    )


def _turn(row: Row, token_fields: Mapping[str, Any], images: Mapping[str, bytes]) -> Turn:
    return rebuilt(
        Turn,
        row,
        index=row["turn"],
        reasoning_chars=_span(row, "reasoning"),
        answer_chars=_span(row, "answer"),
        actions=tuple(row["actions"]),
        reward=math.nan if row["reward"] is None else row["reward"],
        finish_reason=FinishReason(row["finish_reason"]),
        info=dict(row["info"]),
        shaping=dict(row["shaping"]),
        calls=_calls(row["calls"]),
        image=images.get(row["image"] or ""),
        **token_fields,
    )


def _token_fields(turn: Row, entry: Row, previous: IntArray | None) -> dict[str, Any]:
    """The fields of a turn that its row of `tokens` holds.

    Args:
        turn: its row of `turns`.
        entry: its row of `tokens`.
        previous: prompt and response of the turn before.
    """
    prompt: IntArray = np.array(entry["prompt_tokens"], dtype=np.int32)
    if entry["prompt_prefix"]:
        if previous is None or len(previous) < entry["prompt_prefix"]:
            raise ValueError(
                f"{turn['trajectory_id']} turn {turn['turn']}: the turn before is missing, "
                "so its prompt cannot be rebuilt"
            )
        prompt = np.concatenate([previous[: entry["prompt_prefix"]], prompt])
    sizes = entry["support_sizes"]
    return {  # lists become arrays where the record is built
        "prompt_tokens": prompt,
        "response_tokens": np.array(entry["response_tokens"], dtype=np.int32),
        "logprobs": entry["logprobs"],
        "entropies": entry["entropies"],
        "temperature": entry["temperature"],
        "support": None if sizes is None else Support(sizes=sizes, tokens=entry["support_tokens"]),
        "reasoning_span": _span(entry, "reasoning"),
    }


def outcome_from_rows(row: Row, tokens: Sequence[Row]) -> TrajectoryOutcome | None:
    """What the update learned, or None where it has not seen the trajectory."""
    if row["kept"] is None:
        return None
    by_turn = {entry["turn"]: entry for entry in tokens}
    arrays = {
        name: tuple(
            np.array(by_turn[turn][name] if turn in by_turn else [], dtype=np.float32)
            for turn in range(row["num_turns"])
        )
        for name in OUTCOME_ARRAYS
        if any(entry[name] is not None for entry in tokens)
    }
    return rebuilt(TrajectoryOutcome, row, trajectory_id=row["id"], **arrays)


def diagnostic_from_row(row: Row) -> DiagnosticRecord:
    shapes = dict(row["shapes"])
    arrays = {
        name: np.array(values, dtype=np.float64).reshape(shapes[name])
        for name, values in row["arrays"]
    }
    ids = tuple(row["trajectory_ids"])
    return rebuilt(DiagnosticRecord, row, arrays=arrays, trajectory_ids=ids)


_COUNTED_BY_THE_JOURNAL = ("run_id", "attempt", "sequence")
"""Columns of event tables that the journal adds to what a record says."""


EventRecord = Alarm | CommandAck | Command | CheckpointRecord | SettingsRecord
EVENT_TABLE: Mapping[type[EventRecord], str] = {
    Alarm: "alarms",
    CommandAck: "command_events",
    Command: "commands",
    CheckpointRecord: "checkpoints",
    SettingsRecord: "settings",
}
"""The table of each kind of event, in the order of a journal record."""


def event_row(record: EventRecord, **others: Any) -> dict[str, Any]:
    """A record as a row of its event table; `others` are columns without a field of their name."""
    if isinstance(record, SettingsRecord):
        others["settings"] = record.values
    columns = TABLES[EVENT_TABLE[type(record)]].column_names
    names = (name for name in columns if name not in _COUNTED_BY_THE_JOURNAL)
    values = {name: getattr(record, name, others.get(name)) for name in names}
    return {name: _event_value(value) for name, value in values.items()}


def _event_value(value: Any) -> Any:
    """Settings and a command that an alarm suggests are JSON text in their columns."""
    if isinstance(value, Command):
        return json.dumps(event_row(value) | {"run_id": value.run_id})
    return json.dumps(plain(value)) if isinstance(value, Mapping) else value


def command_from_row(row: Row, run_id: str) -> Command:
    """Raises ValueError, TypeError or KeyError where the row is not a command."""
    expires_at = row["expires_at"]
    return Command(
        command_id=str(row["command_id"]),
        run_id=run_id,
        issued_at=float(row["issued_at"]),
        issued_by=str(row["issued_by"]),
        action=CommandAction(row["action"]),
        settings=_settings(row),
        reason=str(row["reason"]),
        expires_at=None if expires_at is None else float(expires_at),
    )


def _settings(row: Row) -> dict[str, Any]:
    settings = json.loads(row["settings"])
    if not isinstance(settings, dict):
        raise TypeError(f"settings is {settings!r}, but must be an object")
    return settings


def ack_from_row(row: Row) -> CommandAck:
    return rebuilt(CommandAck, row, outcome=CommandOutcome(row["outcome"]))


def alarm_from_row(row: Row) -> Alarm:
    command = None if row["suggested"] is None else json.loads(row["suggested"])
    return rebuilt(
        Alarm,
        row,
        severity=AlarmSeverity(row["severity"]),
        state=AlarmState(row["state"]),
        suggested=command and command_from_row(command, command["run_id"]),
        evidence=tuple(row["evidence"]),
    )


def settings_from_row(row: Row) -> SettingsRecord:
    """Raises ValueError or TypeError where the row does not hold settings."""
    return SettingsRecord(step=row["step"], values=_settings(row))
