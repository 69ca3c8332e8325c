"""Whatever records hold comes back from the store as it went in."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from echoscope.store.log.packing import pack
from echoscope.store.query.rows import OUTCOME_ARRAYS, clean_text, shared_prefix
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import (
    FinishReason,
    Split,
    StepMetrics,
    StopReason,
    Support,
    ToolCall,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)
from echoscope.store.writer import RunWriter

TEXT = st.text(max_size=20)  # any character of any plane, NUL included, lone surrogates not
SEEDS = st.integers(-(2**63), 2**63 - 1)
NUMBERS = st.floats(allow_nan=False)
FLOATS = st.floats(width=32, allow_nan=False)
CALLS = st.builds(ToolCall, name=TEXT, arguments=TEXT, result=TEXT, problem=TEXT)
IMAGES = st.none() | st.binary(min_size=1, max_size=8)
NAMES = st.dictionaries(TEXT, NUMBERS, max_size=2)


@st.composite
def spans(draw: st.DrawFn, size: int) -> tuple[int, int] | None:
    if draw(st.booleans()):
        return None
    start = draw(st.integers(0, size))
    return start, draw(st.integers(start, size))


@st.composite
def turn_records(draw: st.DrawFn, index: int, context: list[int]) -> Turn:
    """A turn whose prompt extends `context`, or does not; with tokens, or without."""
    response = draw(TEXT)
    tokens: dict[str, Any] = {}
    if draw(st.booleans()):
        ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
        prompt = (context if draw(st.booleans()) else []) + draw(ids)
        sampled = draw(ids)
        context[:] = prompt + sampled
        per_token = st.lists(FLOATS, min_size=len(sampled), max_size=len(sampled))
        tokens = {
            "prompt_tokens": np.array(prompt, dtype=np.int32),
            "response_tokens": np.array(sampled, dtype=np.int32),
            "logprobs": draw(st.none() | per_token.map(np.float32)),
            "entropies": draw(st.none() | per_token.map(np.float32)),
            "reasoning_span": draw(spans(len(sampled))),
            "temperature": draw(st.none() | st.floats(0, 10)),
            "support": draw(st.none() | supports(len(sampled))),
        }
    return Turn(
        index=index,
        observation=draw(TEXT),
        response=response,
        reasoning_chars=draw(spans(len(response))),
        answer_chars=draw(spans(len(response))),
        actions=tuple(draw(st.lists(TEXT, max_size=2))),
        reward=draw(st.floats(-1e6, 1e6)),
        format_penalty=draw(st.floats(-1e6, 0)),
        is_valid=draw(st.booleans()),
        is_effective=draw(st.booleans()),
        finish_reason=draw(st.sampled_from(FinishReason)),
        policy_version=draw(st.integers(0, 2**31 - 1)),
        frame=draw(st.none() | TEXT),
        image=draw(IMAGES),
        info=draw(NAMES),
        shaping=draw(st.dictionaries(TEXT, st.floats(-1e6, 1e6), max_size=2)),
        calls=tuple(draw(st.lists(CALLS, max_size=2))),
        **tokens,
    )


@st.composite
def supports(draw: st.DrawFn, num_tokens: int) -> Support:
    sizes = draw(st.lists(st.integers(0, 3), min_size=num_tokens, max_size=num_tokens))
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=sum(sizes), max_size=sum(sizes)))
    return Support(sizes=np.int32(sizes), tokens=np.int32(tokens))


@st.composite
def trajectory_records(draw: st.DrawFn, index: int) -> Trajectory:
    context: list[int] = []
    turns = tuple(draw(turn_records(k, context)) for k in range(draw(st.integers(0, 3))))
    return Trajectory(
        step=3,
        split=draw(st.sampled_from(Split)),
        index=index,
        group_index=draw(st.integers(-1, 1000)),
        sibling_index=draw(st.integers(-1, 1000)),
        env_id=draw(TEXT),
        tag=draw(TEXT),
        env_seed=draw(SEEDS),
        noise_seed=draw(SEEDS),
        prompt_key=draw(TEXT),
        turns=turns,
        final_observation=draw(TEXT),
        final_frame=draw(st.none() | TEXT),
        final_image=draw(IMAGES),
        stop_reason=draw(st.sampled_from(StopReason)),
        is_success=draw(st.none() | st.booleans()),
        duration_s=draw(NUMBERS),
        source=draw(st.none() | TEXT),
        extra=draw(st.none() | TEXT),
    )


@st.composite
def outcome_records(draw: st.DrawFn, trajectory: Trajectory) -> TrajectoryOutcome:
    sizes = [0 if t.response_tokens is None else len(t.response_tokens) for t in trajectory.turns]
    has_tokens = any(t.response_tokens is not None for t in trajectory.turns)
    arrays: dict[str, Any] = {}
    for name in OUTCOME_ARRAYS:
        if has_tokens and draw(st.booleans()):
            arrays[name] = tuple(
                np.float32(draw(st.lists(FLOATS, min_size=size, max_size=size))) for size in sizes
            )
    kept = draw(st.booleans())
    return TrajectoryOutcome(
        trajectory_id=trajectory.id,
        advantage=draw(st.none() | NUMBERS),
        kept=kept,
        drop_reason=None if kept else draw(st.none() | TEXT),
        **arrays,
    )


def same(left: Any, right: Any) -> bool:
    """Equality of records whose arrays numpy compares element by element."""
    if dataclasses.is_dataclass(left) and type(left) is type(right):
        names = [f.name for f in dataclasses.fields(left)]
        return all(same(getattr(left, name), getattr(right, name)) for name in names)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and np.array_equal(left, right)
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return left == dict(right)
    return bool(left == right)


def assert_stored(
    reader: RunReader, pairs: list[tuple[Trajectory, TrajectoryOutcome | None]]
) -> None:
    for trajectory, outcome in pairs:
        assert same(reader.trajectory(trajectory.id), trajectory)
        assert same(reader.outcome(trajectory.id), outcome)
    stored = {t.id: t for t in reader.trajectories_of_step(3)}
    assert all(same(stored[t.id], t) for t, _ in pairs)


@pytest.mark.long
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_trajectories_and_outcomes_come_back(data: st.DataObject) -> None:
    trajectories = [data.draw(trajectory_records(index)) for index in range(4)]
    outcomes = [data.draw(st.none() | outcome_records(t)) for t in trajectories]
    values = data.draw(st.dictionaries(TEXT, st.floats(), max_size=3))
    metrics = StepMetrics(
        run_id="r", step=3, phase="train", policy_version=1, wall_time=0.5, values=values
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r"
        with RunWriter.create(path, run_id="r", config={}, is_packing=False) as writer:
            writer.commit_step(
                metrics=[metrics],
                trajectories=trajectories,
                outcomes=[outcome for outcome in outcomes if outcome is not None],
            )
        pairs = list(zip(trajectories, outcomes, strict=True))
        reader = open_run(path)
        assert_stored(reader, pairs)
        for key, value in values.items():
            assert np.array_equal(reader.metrics(key)[1], [value], equal_nan=True)
        pack(path)
        assert_stored(open_run(path), pairs)
        assert_stored(reader, pairs)


def test_hostile_text_is_stored_as_it_is(
    writer: RunWriter, run_path: Path, metrics: Any, trajectory: Any
) -> None:
    text = "\x1b[2J'; DROP TABLE turns; -- \x00 <script>alert(1)</script> \U0001f600 \u202e"
    made = trajectory(0, 0, num_turns=0, final_observation=text, tag=text, extra=text)
    writer.commit_step(metrics=[metrics(0, **{text: 1.0})], trajectories=[made])
    writer.flush()
    reader = open_run(run_path)
    assert reader.trajectory(made.id).final_observation == text
    assert reader.metrics(text)[1].tolist() == [1.0]
    assert reader.sql("SELECT id FROM trajectories WHERE tag = ?", [text]).num_rows == 1


def test_lone_surrogates_are_replaced_and_spans_stay_right() -> None:
    # UTF-8 cannot hold half a pair: one character for one, so (1, 2) is still the same place.
    assert clean_text("a\ud800b") == "a\ufffdb"
    assert clean_text("plain") == "plain"


@pytest.mark.parametrize(
    ("previous", "prompt", "expected"),
    [
        (None, [1, 2], 0),
        ([1, 2], [1, 2, 3], 2),  # extends
        ([1, 2, 3], [1, 2], 2),  # shorter
        ([1, 9, 3], [1, 2, 3], 1),  # parts after one token
        ([9], [1], 0),
        ([], [1], 0),
    ],
)
def test_shared_prefix(previous: list[int] | None, prompt: list[int], expected: int) -> None:
    before = None if previous is None else np.array(previous, dtype=np.int32)
    assert shared_prefix(before, np.array(prompt, dtype=np.int32)) == expected
