"""A writer to be killed: `python killed_writer.py RUN`. Says `ready PID`, then each step that is
known to be on the disk. Content follows from the step alone, so anybody can say what must be there.

With `-` it forks such a writer for each path it reads, which spares the imports, and says `dead`
when that is gone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np

from echoscope.store.reader import open_run
from echoscope.store.records import (
    Split,
    StepMetrics,
    StopReason,
    Trajectory,
    TrajectoryOutcome,
    Turn,
)
from echoscope.store.writer import RunWriter


def trajectories_of(step: int) -> list[Trajectory]:
    """Two to five trajectories of one to three turns."""
    return [_trajectory(step, index) for index in range(2 + step % 4)]


def _trajectory(step: int, index: int) -> Trajectory:
    rng = np.random.default_rng([step, index])
    turns = tuple(
        Turn(
            index=k,
            observation=f"{step} {index} {k} " * 20,
            response="x" * int(rng.integers(0, 50)),
            prompt_tokens=rng.integers(0, 1000, 40, dtype=np.int32),
            response_tokens=rng.integers(0, 1000, 60, dtype=np.int32),
            logprobs=rng.random(60, dtype=np.float32),
            reward=float(rng.random()),
        )
        for k in range(1 + index % 3)
    )
    return Trajectory(
        step=step,
        split=Split.TRAIN,
        index=index,
        group_index=index,
        sibling_index=0,
        env_id="bandit",
        tag="",
        env_seed=step,
        noise_seed=index,
        prompt_key="",
        turns=turns,
        stop_reason=StopReason.TERMINATED,
    )


def summary_of(step: int) -> tuple[int, int, int, int, int]:
    """Trajectories, turns, sum of sampled ids, characters and metrics of a step."""
    turns = [turn for t in trajectories_of(step) for turn in t.turns]
    ids = sum(int(t.response_tokens.sum()) for t in turns if t.response_tokens is not None)
    characters = sum(len(turn.observation) + len(turn.response) for turn in turns)
    return len(trajectories_of(step)), len(turns), ids, characters, 30


def write(path: Path) -> None:
    options = {"rotate_every": 4, "is_packing": False}
    if path.exists():
        last = open_run(path).info().last_step
        writer = RunWriter.resume(path, from_step=last, **options)
    else:
        writer = RunWriter.create(path, run_id="killed", config={}, **options)
    os.write(1, f"ready {os.getpid()}\n".encode())
    step = writer.acknowledged_step
    while True:
        step += 1
        batch = trajectories_of(step)
        if step % 2:
            writer.add_trajectories(batch[:2])
            writer.flush()
        metrics = StepMetrics(
            run_id="killed",
            step=step,
            phase="train",
            policy_version=step,
            wall_time=0.0,
            values={f"metric/{i}": float(step * i) for i in range(30)},
        )
        outcomes = [TrajectoryOutcome(trajectory_id=t.id, advantage=1.0, kept=True) for t in batch]
        writer.commit_step(metrics=[metrics], trajectories=batch, outcomes=outcomes)
        writer.flush()
        os.write(1, f"{step}\n".encode())


def serve() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            write(Path(line.strip()))
        os.waitpid(child, 0)
        os.write(1, b"dead\n")


if __name__ == "__main__":
    serve() if sys.argv[1] == "-" else write(Path(sys.argv[1]))
