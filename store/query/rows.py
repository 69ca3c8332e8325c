"""Trajectories, outcomes and diagnostics as rows with the columns of `schema.py`, and back."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from echoscope.text.png import picture_key

from ..records import (
    DiagnosticRecord,
    FinishReason,
    FloatArray,
    IntArray,
    PromptImage,
    Span,
    Split,
    StopReason,
    Support,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
    parse_trajectory_id,
    vocabulary_ids,
)
from ..schema import arrow_schema

OUTCOME_ARRAYS = ("advantages", "trainer_logprobs", "ref_logprobs", "information")
"""Per-token fields of `TrajectoryOutcome`, columns of `tokens` under the same names."""

_SURROGATES = re.compile("[\ud800-\udfff]")
_INT64 = np.iinfo(np.int64)

TurnRow = tuple[Trajectory, Turn]


def clean_text(text: str) -> str:
    """`text` with each lone surrogate replaced by U+FFFD: UTF-8 has no way to write one.

    The number of characters does not change, so spans stay right.
    """
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def _known(value: float) -> float | None:
    """None for NaN: a reward that nobody wrote down is absent, and a mean in SQL leaves it out."""
    return None if math.isnan(value) else value


def _known_items(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(clean_text(name), value) for name, value in values.items() if not math.isnan(value)]


def _optional_text(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


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
    sizes = [_response_size(turn) for turn in trajectory.turns]
    for name in OUTCOME_ARRAYS:
        arrays = getattr(outcome, name)
        if arrays is not None and [len(array) for array in arrays] != sizes:
            raise ValueError(
                f"{trajectory.id}: {name} has lengths {[len(a) for a in arrays]}, but the turns "
                f"have {sizes} response tokens"
            )


def _response_size(turn: Turn) -> int:
    return 0 if turn.response_tokens is None else len(turn.response_tokens)


def _table(name: str, columns: Mapping[str, Iterable[Any] | pa.Array]) -> pa.Table:
    schema = arrow_schema(name)
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, type=field.type)
        for column, field in ((columns[field.name], field) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def _repeat(value: Any, size: int, arrow: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, type=arrow), size)


def _step_columns(run_id: str, attempt: int, steps: Sequence[int]) -> dict[str, Any]:
    return {
        "run_id": _repeat(run_id, len(steps), pa.string()),
        "step": steps,
        "attempt": _repeat(attempt, len(steps), pa.int32()),
    }


def trajectories_table(
    run_id: str,
    attempt: int,
    trajectories: Sequence[Trajectory],
    outcomes: Mapping[str, TrajectoryOutcome],
) -> pa.Table:
    """One row per trajectory; outcome columns are NULL where there is no outcome."""
    joined = [outcomes.get(t.id) for t in trajectories]
    columns = _step_columns(run_id, attempt, [t.step for t in trajectories])
    columns |= {
        "split": [t.split.value for t in trajectories],
        "id": [t.id for t in trajectories],
        "group_index": [t.group_index for t in trajectories],
        "sibling_index": [t.sibling_index for t in trajectories],
        "env_id": [clean_text(t.env_id) for t in trajectories],
        "tag": [clean_text(t.tag) for t in trajectories],
        "env_seed": [t.env_seed for t in trajectories],
        "noise_seed": [t.noise_seed for t in trajectories],
        "prompt_key": [t.prompt_key for t in trajectories],
        "policy_version": [t.policy_version for t in trajectories],
        "env_return": [_known(t.env_return) for t in trajectories],
        "episode_return": [_known(t.episode_return) for t in trajectories],
        "reward_terms": [_known_items(t.reward_terms) for t in trajectories],
        "advantage": [None if o is None else o.advantage for o in joined],
        "kept": [None if o is None else o.kept for o in joined],
        "drop_reason": [None if o is None else _optional_text(o.drop_reason) for o in joined],
        "is_success": [t.is_success for t in trajectories],
        "stop_reason": [t.stop_reason.value for t in trajectories],
        "num_turns": [t.num_turns for t in trajectories],
        "num_sampled_tokens": [t.num_sampled_tokens for t in trajectories],
        "duration_s": [t.duration_s for t in trajectories],
        "final_observation": [clean_text(t.final_observation) for t in trajectories],
        "final_frame": [_optional_text(t.final_frame) for t in trajectories],
        "source": [_optional_text(t.source) for t in trajectories],
        "extra": [_optional_text(t.extra) for t in trajectories],
        "task_key": [_optional_text(t.task_key) for t in trajectories],
        "final_image": [_optional_key(t.final_image) for t in trajectories],
    }
    return _table("trajectories", columns)


def _optional_key(png: bytes | None) -> str | None:
    return None if png is None else picture_key(png)


def images_of(trajectories: Iterable[Trajectory]) -> dict[str, bytes]:
    """The different pictures of trajectories by key, in the order in which they came."""
    found: dict[str, bytes] = {}
    for trajectory in trajectories:
        for png in (*(turn.image for turn in trajectory.turns), trajectory.final_image):
            if png is not None:
                found.setdefault(picture_key(png), png)
    return found


def images_table(run_id: str, attempt: int, step: int, images: Mapping[str, bytes]) -> pa.Table:
    """One row per picture."""
    columns = _step_columns(run_id, attempt, [step] * len(images))
    return _table("images", columns | {"key": list(images), "png": list(images.values())})


def _turn_columns(run_id: str, attempt: int, rows: Sequence[TurnRow]) -> dict[str, Any]:
    columns = _step_columns(run_id, attempt, [t.step for t, _ in rows])
    columns["trajectory_id"] = [t.id for t, _ in rows]
    columns["turn"] = [turn.index for _, turn in rows]
    return columns


def _bounds(spans: Sequence[Span | None]) -> tuple[list[int | None], list[int | None]]:
    return [None if s is None else s[0] for s in spans], [
        None if s is None else s[1] for s in spans
    ]


def turns_table(run_id: str, attempt: int, trajectories: Sequence[Trajectory]) -> pa.Table:
    """One row per turn."""
    rows = [(t, turn) for t in trajectories for turn in t.turns]
    turns = [turn for _, turn in rows]
    columns = _turn_columns(run_id, attempt, rows)
    columns["reasoning_start"], columns["reasoning_end"] = _bounds(
        [turn.reasoning_chars for turn in turns]
    )
    columns["answer_start"], columns["answer_end"] = _bounds([turn.answer_chars for turn in turns])
    columns |= {
        "observation": [clean_text(turn.observation) for turn in turns],
        "frame": [_optional_text(turn.frame) for turn in turns],
        "response": [clean_text(turn.response) for turn in turns],
        "actions": [[clean_text(action) for action in turn.actions] for turn in turns],
        "reward": [_known(turn.reward) for turn in turns],
        "format_penalty": [turn.format_penalty for turn in turns],
        "is_valid": [turn.is_valid for turn in turns],
        "is_effective": [turn.is_effective for turn in turns],
        "finish_reason": [turn.finish_reason.value for turn in turns],
        "policy_version": [turn.policy_version for turn in turns],
        "info": [_map_items(turn.info) for turn in turns],
        "shaping": [_map_items(turn.shaping) for turn in turns],
        "calls": [_calls_text(turn.calls) for turn in turns],
        "image": [_optional_key(turn.image) for turn in turns],
    }
    return _table("turns", columns)


def _calls_text(calls: Sequence[ToolCall]) -> str | None:
    if not calls:
        return None
    rows = [{f.name: clean_text(getattr(call, f.name)) for f in fields(call)} for call in calls]
    return json.dumps(rows)


def _calls(text: str | None) -> tuple[ToolCall, ...]:
    rows = [] if text is None else json.loads(text)
    return tuple(
        ToolCall(**{f.name: str(row.get(f.name, "")) for f in fields(ToolCall)}) for row in rows
    )


def _map_items(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return [(clean_text(name), float(value)) for name, value in values.items()]


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
            prompt = vocabulary_ids(turn.prompt_tokens, turn.prompt_images)
            prefix = shared_prefix(previous, prompt)
            rows.append((trajectory, turn))
            prefixes.append(prefix)
            prompts.append(prompt[prefix:])
            previous = np.concatenate([prompt, turn.response_tokens])
    turns = [turn for _, turn in rows]
    columns = _turn_columns(run_id, attempt, rows)
    columns["reasoning_start"], columns["reasoning_end"] = _bounds(
        [turn.reasoning_span for turn in turns]
    )
    columns |= {
        "prompt_prefix": prefixes,
        "prompt_tokens": _list_array(prompts, np.dtype(np.int32)),
        "response_tokens": _list_array([t.response_tokens for t in turns], np.dtype(np.int32)),
        "logprobs": _list_array([turn.logprobs for turn in turns], np.dtype(np.float32)),
        "entropies": _list_array([turn.entropies for turn in turns], np.dtype(np.float32)),
        "temperature": [turn.temperature for turn in turns],
        "support_sizes": _list_array(
            [None if t.support is None else t.support.sizes for t in turns], np.dtype(np.int32)
        ),
        "support_tokens": _list_array(
            [None if t.support is None else t.support.tokens for t in turns], np.dtype(np.int32)
        ),
        "prompt_images": [[i.key for i in t.prompt_images] or None for t in turns],
        "prompt_image_starts": [[i.span[0] for i in t.prompt_images] or None for t in turns],
        "prompt_image_ends": [[i.span[1] for i in t.prompt_images] or None for t in turns],
    }
    for name in OUTCOME_ARRAYS:
        columns[name] = _list_array(
            [_outcome_array(outcomes.get(t.id), name, turn) for t, turn in rows],
            np.dtype(np.float32),
        )
    return _table("tokens", columns)


def _outcome_array(
    outcome: TrajectoryOutcome | None, name: str, turn: Turn
) -> NDArray[np.float32] | None:
    arrays = None if outcome is None else getattr(outcome, name)
    return None if arrays is None else arrays[turn.index]


def _list_array(arrays: Sequence[NDArray[Any] | None], dtype: np.dtype[Any]) -> pa.Array:
    """Arrow lists from arrays without a Python object per element; None becomes NULL."""
    sizes = np.array([0 if array is None else len(array) for array in arrays], dtype=np.int64)
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum(sizes, out=offsets[1:])
    present = [array for array in arrays if array is not None]
    values = np.concatenate(present).astype(dtype, copy=False) if present else np.empty(0, dtype)
    mask = np.array([array is None for array in arrays], dtype=np.bool_)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values), mask=pa.array(mask) if mask.any() else None
    )


def diagnostics_table(run_id: str, attempt: int, records: Sequence[DiagnosticRecord]) -> pa.Table:
    """One row per record."""
    columns = _step_columns(run_id, attempt, [record.step for record in records])
    columns |= {
        "kind": [clean_text(record.kind) for record in records],
        "arrays": [[(n, a.ravel()) for n, a in record.arrays.items()] for record in records],
        "shapes": [[(n, list(a.shape)) for n, a in record.arrays.items()] for record in records],
        "trajectory_ids": [list(record.trajectory_ids) for record in records],
        "payload": [_optional_text(record.payload) for record in records],
    }
    return _table("diagnostics", columns)


Row = Mapping[str, Any]


def _span(row: Row, name: str) -> Span | None:
    start, end = row[f"{name}_start"], row[f"{name}_end"]
    return None if start is None else (start, end)


def _floats(values: Sequence[float] | None) -> FloatArray | None:
    return None if values is None else np.array(values, dtype=np.float32)


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
    rebuilt = []
    previous: IntArray | None = None
    for turn in turns:
        entry = tokens_by_turn.get(turn["turn"])
        rebuilt.append(_turn(turn, entry, previous, images))
        prompt, response = rebuilt[-1].prompt_tokens, rebuilt[-1].response_tokens
        previous = (
            None if prompt is None or response is None else np.concatenate([prompt, response])
        )
    _, step, index = parse_trajectory_id(row["id"])
    return Trajectory(
        step=step,
        split=Split(row["split"]),
        index=index,
        group_index=row["group_index"],
        sibling_index=row["sibling_index"],
        env_id=row["env_id"],
        tag=row["tag"],
        env_seed=row["env_seed"],
        noise_seed=row["noise_seed"],
        prompt_key=row["prompt_key"],
        turns=tuple(rebuilt),
        final_observation=row["final_observation"],
        final_frame=row["final_frame"],
        final_image=images.get(row["final_image"] or ""),
        stop_reason=StopReason(row["stop_reason"]),
        is_success=row["is_success"],
        duration_s=row["duration_s"],
        source=row["source"],
        extra=row["extra"],
        task_key=row["task_key"],
    )


def _turn(
    row: Row, entry: Row | None, previous: IntArray | None, images: Mapping[str, bytes]
) -> Turn:
    prompt = response = logprobs = entropies = reasoning = temperature = support = None
    if entry is not None:
        prompt = np.array(entry["prompt_tokens"], dtype=np.int32)
        if entry["prompt_prefix"]:
            if previous is None or len(previous) < entry["prompt_prefix"]:
                raise ValueError(
                    f"{row['trajectory_id']} turn {row['turn']}: the turn before is missing, "
                    "so its prompt cannot be rebuilt"
                )
            prompt = np.concatenate([previous[: entry["prompt_prefix"]], prompt])
        response = np.array(entry["response_tokens"], dtype=np.int32)
        logprobs, entropies = _floats(entry["logprobs"]), _floats(entry["entropies"])
        temperature, support = entry["temperature"], _support(entry)
        reasoning = _span(entry, "reasoning")
    return Turn(
        index=row["turn"],
        observation=row["observation"],
        response=row["response"],
        reasoning_chars=_span(row, "reasoning"),
        answer_chars=_span(row, "answer"),
        prompt_tokens=prompt,
        response_tokens=response,
        logprobs=logprobs,
        entropies=entropies,
        temperature=temperature,
        support=support,
        reasoning_span=reasoning,
        actions=tuple(row["actions"]),
        reward=math.nan if row["reward"] is None else row["reward"],
        format_penalty=row["format_penalty"],
        is_valid=row["is_valid"],
        is_effective=row["is_effective"],
        finish_reason=FinishReason(row["finish_reason"]),
        policy_version=row["policy_version"],
        frame=row["frame"],
        info=dict(row["info"]),
        shaping=dict(row["shaping"]),
        calls=_calls(row["calls"]),
        image=images.get(row["image"] or ""),
        prompt_images=() if entry is None or prompt is None else _prompt_images(entry, prompt),
    )


def _prompt_images(entry: Row, prompt: IntArray) -> tuple[PromptImage, ...]:
    places = (entry["prompt_images"], entry["prompt_image_starts"], entry["prompt_image_ends"])
    return tuple(
        PromptImage(key=key, span=(start, end), token_id=int(prompt[start]))
        for key, start, end in zip(*(column or () for column in places), strict=True)
    )


def _support(entry: Row) -> Support | None:
    if entry["support_sizes"] is None:
        return None
    return Support(
        sizes=np.array(entry["support_sizes"], dtype=np.int32),
        tokens=np.array(entry["support_tokens"], dtype=np.int32),
    )


def outcome_from_rows(row: Row, tokens: Sequence[Row]) -> TrajectoryOutcome | None:
    """What the update learned, or None where it has not seen the trajectory."""
    if row["kept"] is None:
        return None
    by_turn = {entry["turn"]: entry for entry in tokens}
    arrays: dict[str, tuple[FloatArray, ...] | None] = {}
    for name in OUTCOME_ARRAYS:
        if any(entry[name] is not None for entry in tokens):
            arrays[name] = tuple(
                np.array(by_turn[turn][name] if turn in by_turn else [], dtype=np.float32)
                for turn in range(row["num_turns"])
            )
        else:
            arrays[name] = None
    return TrajectoryOutcome(
        trajectory_id=row["id"],
        advantage=row["advantage"],
        kept=row["kept"],
        drop_reason=row["drop_reason"],
        **arrays,
    )


def diagnostic_from_row(row: Row) -> DiagnosticRecord:
    shapes = dict(row["shapes"])
    return DiagnosticRecord(
        step=row["step"],
        kind=row["kind"],
        arrays={
            name: np.array(values, dtype=np.float64).reshape(shapes[name])
            for name, values in row["arrays"]
        },
        trajectory_ids=tuple(row["trajectory_ids"]),
        payload=row["payload"],
    )
