"""Copy a run that is stored already to a sink, as it would have been copied while it trained.

The status of the sink says how far the run has been copied, so a second call copies what is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import Alarm, Trajectory

from ..judge.verdict import Diagnosis, judged_again
from ..read.sources import open_source
from .mirror import Mirror, is_due
from .settings import SinkError, SinkName, SinksConfig
from .status import SinkStatus, read_status

MAX_WAITING = 50
"""Steps that wait for the sink: a run of any length is read as fast as the sink takes it."""
_LIVE = ("live", "waiting", "paused")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mirrored:
    """What a copy did."""

    status: SinkStatus
    num_steps: int
    """Steps that were copied now."""


def mirror_run(
    run_path: Path,
    sink: SinkName,
    config: SinksConfig,
    *,
    progress: Progress | None = None,
    on_message: Callable[[str], None] = lambda text: None,
) -> Mirrored:
    """Copy the steps of a stored run that a sink does not have yet.

    Args:
        config: with this sink on, and no other.
        progress: called with (steps, of steps).
        on_message: told of what goes wrong on the way.

    Raises:
        SinkError: the package is missing; the run copies itself there now; the sink failed.
        StoreError: the run cannot be read.
    """
    reader = open_run(run_path)
    before = read_status(run_path, sink)
    is_live = reader.status().status.value in _LIVE
    if before is not None and before.state == "running" and is_live:
        raise SinkError(f"{run_path}: this run is live and copies itself to {sink}")
    done = -1 if before is None or before.last_step is None else before.last_step
    rows = reader.sql("SELECT DISTINCT step FROM metrics WHERE step > $1 ORDER BY step", [done])
    steps: list[int] = rows.column("step").to_pylist()
    if not steps and before is not None:
        return Mirrored(status=before, num_steps=0)
    if not steps:
        raise SinkError(f"{run_path}: the run has no step with metrics, so nothing can be copied")
    mirror = Mirror(
        config, run_path=run_path, run_config=reader.info().config, on_message=on_message
    )
    try:
        _copy(reader, mirror, steps, config, progress)
    finally:
        mirror.close(reader.info().status)
    (status,) = mirror.statuses()
    if status.state == "failed":
        far = (
            "nothing was copied"
            if status.last_step is None
            else f"copied up to step {status.last_step}; the same command goes on from there"
        )
        raise SinkError(f"{sink}: {status.problem}; {far}")
    return Mirrored(status=status, num_steps=len(steps))


def _copy(
    reader: RunReader,
    mirror: Mirror,
    steps: list[int],
    config: SinksConfig,
    progress: Progress | None,
) -> None:
    opened = open_source(reader)
    diagnosis = Diagnosis(run_id=opened.run_id, run=opened.name)
    judged = judged_again(opened, diagnosis)
    stored: dict[int, list[Alarm]] = {}
    for alarm in reader.alarms():
        stored.setdefault(alarm.step, []).append(alarm)
    raised: list[Alarm] = []
    judged_step = -1
    for number, (step, values) in enumerate(_values(reader, steps)):
        while judged_step < step:
            judged_step, alarms = next(judged, (step, []))
            raised += alarms if judged_step >= steps[0] else []
        shows_episodes = bool(config.episodes) and is_due(step, config.episodes_every)
        mirror.copy(
            step,
            values,
            trajectories=_episodes(reader, step, config.episodes) if shows_episodes else (),
            alarms=stored.get(step, []) if stored else raised,
            verdict=diagnosis.verdict,
        )
        raised = []
        while mirror.num_waiting > MAX_WAITING and not mirror.has_failed:
            time.sleep(0.005)
        if mirror.has_failed:
            return
        if progress:
            progress(number + 1, len(steps))


def _values(reader: RunReader, steps: list[int]) -> Iterator[tuple[int, dict[str, float]]]:
    """The stored numbers of each step; one that could not be computed is NaN."""
    for start in range(0, len(steps), 200):
        part = steps[start : start + 200]
        rows = reader.sql(
            "SELECT step, key, coalesce(value, 'nan') AS value FROM metrics "
            "WHERE step BETWEEN $1 AND $2 ORDER BY step, phase DESC, key",
            [part[0], part[-1]],
        ).to_pylist()
        by_step: dict[int, dict[str, float]] = {step: {} for step in part}
        for row in rows:
            by_step[row["step"]][row["key"]] = float(row["value"])
        yield from by_step.items()


def _episodes(reader: RunReader, step: int, count: int) -> list[Trajectory]:
    """Those that a table shows, without reading all of a step."""
    ids = reader.sql(
        "SELECT id FROM trajectories WHERE step = $1 ORDER BY split, sibling_index, id LIMIT $2",
        [step, count],
    )
    return [reader.trajectory(trajectory_id) for trajectory_id in ids.column("id").to_pylist()]
