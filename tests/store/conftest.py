"""Small records for the tests of the store."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echoscope.store.log.journal import encode_line, read_chunk
from echoscope.store.records import (
    Split,
    StepMetrics,
    StopReason,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)
from echoscope.store.writer import RunWriter

RUN_ID = "run-1"


def build_trajectory(
    step: int, index: int, *, num_turns: int = 2, split: Split = Split.TRAIN, **changes: Any
) -> Trajectory:
    """Turn k samples three tokens; each prompt is the last prompt, its response and one token."""
    turns = []
    context = np.array([1, 2, 3, 4], dtype=np.int32)
    for k in range(num_turns):
        response = np.array([10 * k, 10 * k + 1, index], dtype=np.int32)
        turns.append(
            Turn(
                index=k,
                observation=f"step {step}, turn {k}",
                response="<think>go</think><answer>Up</answer>",
                reasoning_chars=(7, 9),
                answer_chars=(25, 27),
                prompt_tokens=context,
                response_tokens=response,
                logprobs=np.array([-0.5, -0.25, -0.125]),
                entropies=np.array([0.5, 0.25, 0.125]),
                reasoning_span=(0, 1),
                actions=("Up",),
                reward=0.5,
                format_penalty=-0.125,
                policy_version=step,
                info={"distance": 2.0},
                shaping={"length": 0.25},
            )
        )
        context = np.concatenate([context, response, np.array([7], dtype=np.int32)])
    fields: dict[str, Any] = {
        "step": step,
        "split": split,
        "index": index,
        "group_index": index // 2,
        "sibling_index": index % 2,
        "env_id": "frozen_lake",
        "tag": "small",
        "env_seed": 5,
        "noise_seed": index,
        "prompt_key": "abc",
        "turns": tuple(turns),
        "stop_reason": StopReason.TERMINATED,
        "is_success": index % 2 == 0,
        "duration_s": 0.5,
    }
    return Trajectory(**(fields | changes))


def build_outcome(trajectory: Trajectory, advantage: float = 0.5) -> TrajectoryOutcome:
    sizes = [3] * trajectory.num_turns
    return TrajectoryOutcome(
        trajectory_id=trajectory.id,
        advantage=advantage,
        kept=True,
        advantages=tuple(np.full(size, advantage, dtype=np.float32) for size in sizes),
        trainer_logprobs=tuple(np.full(size, -0.5, dtype=np.float32) for size in sizes),
    )


def build_metrics(step: int, phase: str = "train", **values: float) -> StepMetrics:
    return StepMetrics(
        run_id=RUN_ID,
        step=step,
        phase=phase,
        policy_version=step,
        wall_time=1000.0 + step,
        values=values or {"policy/entropy": 1.0 / (step + 1)},
        durations_s={"time/step_s": 2.0},
    )


def write_steps(writer: RunWriter, steps: Sequence[int], count: int = 4) -> None:
    """Commit steps of `count` trajectories each and wait for them."""
    for step in steps:
        batch = [build_trajectory(step, index) for index in range(count)]
        writer.commit_step(
            metrics=[build_metrics(step)],
            trajectories=batch,
            outcomes=[build_outcome(trajectory) for trajectory in batch],
        )
    writer.flush()


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / RUN_ID


@pytest.fixture
def writer(run_path: Path) -> Iterator[RunWriter]:
    """A fresh run, closed after the test."""
    made = RunWriter.create(run_path, run_id=RUN_ID, config={"lr": 0.001}, is_packing=False)
    yield made
    made.close(status="finished")


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    return build_trajectory


@pytest.fixture
def outcome() -> Callable[..., TrajectoryOutcome]:
    return build_outcome


@pytest.fixture
def metrics() -> Callable[..., StepMetrics]:
    return build_metrics


@pytest.fixture
def steps() -> Callable[..., None]:
    return write_steps


@pytest.fixture
def finished_run(run_path: Path) -> Path:
    """A closed run of three steps, 0 to 2, of four trajectories."""
    made = RunWriter.create(run_path, run_id=RUN_ID, config={"lr": 0.001}, is_packing=False)
    write_steps(made, range(3))
    made.close(status="finished")
    return run_path


@pytest.fixture
def wait_until() -> Callable[[Callable[[], bool]], None]:
    def wait(condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.02)

    return wait


@pytest.fixture
def crash_before_end() -> Callable[[Path, int], None]:
    """Leaves a run as a crash does that tore the journal at a byte: that end is the known one."""

    def crash(path: Path, size: int) -> None:
        journal = path / "journal.ndjson"
        journal.write_bytes(journal.read_bytes()[:size])
        last = read_chunk(journal).crcs[-1]
        tail = {"kind": "tail", "piece": 1, "bytes": size, "last": last}
        (path / "journal.tail").write_bytes(encode_line(tail))

    return crash
