"""Small runs written straight into a store, without a trainer."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trajectories import make_trajectory

from echoscope.store.records import DiagnosticRecord, StepMetrics, Trajectory, Turn, prompt_key
from echoscope.store.writer import RunWriter

CONFIG: Mapping[str, Any] = {
    "name": "made",
    "steps": 100,
    "advantage": {"kind": "grpo"},
    "loss": {"kind": "clip"},
    "envs": {"train": [{"env": "frozen_lake"}]},
}


def made_trajectory(step: int, index: int, text: str = "I go up.") -> Trajectory:
    """One turn; every second one succeeds."""
    is_success = index % 2 == 0
    turn = Turn(
        index=0,
        observation=f"prompt {index // 2}",
        response=f"{text}</think><answer>up</answer>",
        reasoning_chars=(0, len(text)),
        actions=("up",),
        reward=float(is_success),
    )
    return make_trajectory(
        turn,
        step=step,
        index=index,
        group_index=index // 2,
        sibling_index=index % 2,
        env_id="frozen_lake",
        tag="small",
        env_seed=index // 2,
        noise_seed=index,
        prompt_key=prompt_key(f"prompt {index // 2}"),
        is_success=is_success,
    )


def template_record(step: int, share: float) -> DiagnosticRecord:
    """That a share of the reasonings of a step is written by one template."""
    payload = {
        "template": {"text": "Go ___.", "match_frac": share, "coverage": 0.5, "fillers": [["up"]]}
    }
    return DiagnosticRecord(step=step, kind="text", payload=json.dumps(payload))


def step_metrics(
    run_id: str, step: int, values: Mapping[str, float], phase: str = "train"
) -> StepMetrics:
    """One step a second; `phase` is `train` or `eval`."""
    return StepMetrics(
        run_id=run_id,
        step=step,
        phase=phase,
        policy_version=step,
        wall_time=1_000.0 + step,
        values=dict(values),
    )


def add_steps(
    writer: RunWriter,
    run_id: str,
    steps: range,
    values: Callable[[int], Mapping[str, float]] = lambda step: {"policy/entropy": 1 / (step + 1)},
    *,
    num_trajectories: int = 4,
    text: str = "I go up.",
) -> None:
    """Commit steps and wait until they are acknowledged."""
    for step in steps:
        writer.commit_step(
            metrics=[step_metrics(run_id, step, values(step))],
            trajectories=[made_trajectory(step, i, text) for i in range(num_trajectories)],
            outcomes=[],
        )
    writer.flush()


def open_writer(path: Path, **options: Any) -> RunWriter:
    """A run that somebody writes until it is closed."""
    settings = {"run_id": path.name, "config": CONFIG, "is_packing": False} | options
    return RunWriter.create(path, **settings)


def make_run(path: Path, num_steps: int = 3, *, status: str = "finished", **options: Any) -> Path:
    """A run that has ended: steps 0 to `num_steps - 1`, four trajectories each."""
    steps_options = {k: options.pop(k) for k in ("values", "text") if k in options}
    writer = open_writer(path, **options)
    add_steps(writer, path.name, range(num_steps), **steps_options)
    writer.close(status=status)
    return path
