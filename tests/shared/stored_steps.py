"""Small steps of a run with tokens, as the tests of the store write and read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from trajectories import make_trajectory

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
    return make_trajectory(**(fields | changes))


def build_outcome(trajectory: Trajectory, advantage: float = 0.5) -> TrajectoryOutcome:
    sizes = [3] * trajectory.num_turns
    return TrajectoryOutcome(
        trajectory_id=trajectory.id,
        advantage=advantage,
        kept=True,
        advantages=tuple(np.full(size, advantage, dtype=np.float32) for size in sizes),
        trainer_logprobs=tuple(np.full(size, -0.5, dtype=np.float32) for size in sizes),
    )


def build_metrics(
    step: int, phase: str = "train", run_id: str = RUN_ID, **values: float
) -> StepMetrics:
    return StepMetrics(
        run_id=run_id,
        step=step,
        phase=phase,
        policy_version=step,
        wall_time=1000.0 + step,
        values=values or {"policy/entropy": 1.0 / (step + 1)},
        durations_s={"time/step_s": 2.0},
    )


def write_steps(
    writer: RunWriter, steps: Sequence[int], count: int = 4, run_id: str = RUN_ID
) -> None:
    """Commit steps of `count` trajectories each and wait for them."""
    for step in steps:
        batch = [build_trajectory(step, index) for index in range(count)]
        writer.commit_step(
            metrics=[build_metrics(step, "train", run_id)],
            trajectories=batch,
            outcomes=[build_outcome(trajectory) for trajectory in batch],
        )
    writer.flush()
