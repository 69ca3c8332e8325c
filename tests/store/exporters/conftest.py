"""Runs that tests export, and what comes back from an import of the export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from made_run import step_metrics

from echoscope.store.importers.importing import import_run
from echoscope.store.reader import open_run
from echoscope.store.records import Trajectory, TrajectoryOutcome
from echoscope.store.writer import RunWriter

TOKENS = frozenset(
    {"prompt_tokens", "response_tokens", "logprobs", "entropies", "temperature", "support"}
    | {"reasoning_span", "prompt_images", "image"}
)
"""Fields of a turn that messages have no place for."""


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


def differences(left: Trajectory, right: Trajectory, *, but: frozenset[str] = TOKENS) -> list[str]:
    """Names of the fields in which two trajectories differ; arrays and NaN compared by value."""
    out = [
        f"{left.id}.{field.name}"
        for field in fields(Trajectory)
        if field.name not in ("turns", *but)
        and not _equal(getattr(left, field.name), getattr(right, field.name))
    ]
    if len(left.turns) != len(right.turns):
        return [*out, f"{left.id}: {len(left.turns)} and {len(right.turns)} turns"]
    for before, after in zip(left.turns, right.turns, strict=True):
        out += [
            f"{left.id}.turns[{before.index}].{field.name}"
            for field in fields(type(before))
            if field.name not in but
            and not _equal(getattr(before, field.name), getattr(after, field.name))
        ]
    return out


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, np.ndarray) or isinstance(right, np.ndarray):
        return left is not None and right is not None and np.array_equal(left, right)
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (left != left and right != right)
    return bool(left == right)


def all_differences(
    left: Sequence[Trajectory], right: Sequence[Trajectory], *, but: frozenset[str] = TOKENS
) -> list[str]:
    """Those of two lists, pair by pair."""
    assert [t.id for t in left] == [t.id for t in right]
    return [name for a, b in zip(left, right, strict=True) for name in differences(a, b, but=but)]
