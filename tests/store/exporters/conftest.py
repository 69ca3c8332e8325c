"""Runs that tests export, and what comes back from an import of the export."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from made_run import step_metrics
from rollout_import import import_run

from echoscope.store.reader import open_run
from echoscope.store.records import Trajectory, TrajectoryOutcome
from echoscope.store.writer import RunWriter


def write_run(
    path: Path,
    trajectories: Sequence[Trajectory],
    outcomes: Sequence[TrajectoryOutcome] = (),
    config: dict[str, Any] | None = None,
) -> Path:
    """A finished run of these trajectories; steps without one are empty."""
    writer = RunWriter.create(path, run_id=path.name, config=config or {}, is_packing=False)
    for step in range(max((t.step for t in trajectories), default=-1) + 1):
        own = [t for t in trajectories if t.step == step]
        ids = {t.id for t in own}
        writer.commit_step(
            metrics=[step_metrics(path.name, step, {"policy/entropy": 1.0})],
            trajectories=own,
            outcomes=[o for o in outcomes if o.trajectory_id in ids],
        )
    writer.close(status="finished")
    return path


def stored(run: Path) -> list[Trajectory]:
    """Every trajectory of a run, by step and id."""
    reader = open_run(run)
    steps = reader.sql("SELECT DISTINCT step FROM trajectories ORDER BY step")
    return [
        t for step in steps.column("step").to_pylist() for t in reader.trajectories_of_step(step)
    ]


def imported(path: Path, run: Path) -> list[Trajectory]:
    """What an import of a path gives."""
    import_run(path, run, is_packing=False)
    return stored(run)
