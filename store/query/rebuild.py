"""Stored rows -> records: the way back from `rows.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..records import (
    DiagnosticRecord,
    FinishReason,
    FloatArray,
    IntArray,
    Span,
    Split,
    StopReason,
    Support,
    Trajectory,
    TrajectoryOutcome,
    Turn,
    parse_trajectory_id,
)
from .rows import OUTCOME_ARRAYS

Row = Mapping[str, Any]


def _span(row: Row, name: str) -> Span | None:
    start, end = row[f"{name}_start"], row[f"{name}_end"]
    return None if start is None else (start, end)


def _floats(values: Sequence[float] | None) -> FloatArray | None:
    return None if values is None else np.array(values, dtype=np.float32)


def trajectory_from_rows(row: Row, turns: Sequence[Row], tokens: Sequence[Row]) -> Trajectory:
    """One trajectory from its row, its turns in order and the token rows of those turns."""
    tokens_by_turn = {entry["turn"]: entry for entry in tokens}
    rebuilt = []
    previous: IntArray | None = None
    for turn in turns:
        entry = tokens_by_turn.get(turn["turn"])
        rebuilt.append(_turn(turn, entry, previous))
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
        stop_reason=StopReason(row["stop_reason"]),
        is_success=row["is_success"],
        duration_s=row["duration_s"],
        source=row["source"],
        extra=row["extra"],
        task_key=row["task_key"],
    )


def _turn(row: Row, entry: Row | None, previous: IntArray | None) -> Turn:
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
        reward=row["reward"],
        format_penalty=row["format_penalty"],
        is_valid=row["is_valid"],
        is_effective=row["is_effective"],
        finish_reason=FinishReason(row["finish_reason"]),
        policy_version=row["policy_version"],
        frame=row["frame"],
        info=dict(row["info"]),
        shaping=dict(row["shaping"]),
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
