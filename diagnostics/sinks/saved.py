"""Copy a run that is stored already to a sink, as it would have been copied while it trained.

The status of the sink says how far the run has been copied, so a second call copies what is new.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import Alarm, StepMetrics, Trajectory

from ..judge.verdict import Diagnosis, judged_again
from ..read.sources import open_source
from ..read.table import stored_rows
from .content import shows_episodes
from .mirror import Mirror, SinkStatus, read_status
from .settings import SinkError, SinkName, SinksConfig

MAX_WAITING = 50
"""Steps that wait for the sink: a run of any length is read as fast as the sink takes it."""
_LIVE = ("live", "waiting", "paused")


def mirror_run(
    run_path: Path,
    sink: SinkName,
    config: SinksConfig,
    *,
    progress: Callable[[int, int], None] | None = None,
    on_message: Callable[[str], None] = lambda text: None,
) -> tuple[SinkStatus, int]:
    """Copy the steps of a stored run that a sink does not have yet.

    Args:
        config: with this sink on, and no other.
        progress: called with (steps, of steps).
        on_message: told of what goes wrong on the way.

    Returns:
        How far the sink is now, and how many steps were copied.

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
        return before, 0
    if not steps:
        raise SinkError(f"{run_path}: the run has no step with metrics, so nothing can be copied")
    info = reader.info()
    mirror = Mirror(
        config, run_path=run_path, run_config=info.config, on_message=on_message, is_stored=True
    )
    try:
        for number, _ in enumerate(_copied(reader, mirror, steps, config.episodes), 1):
            if progress:
                progress(number, len(steps))
    finally:
        mirror.close(info.status)
    (status,) = mirror.statuses()
    if status.state == "failed":
        far = "nothing was copied" if status.last_step is None else f"at step {status.last_step}"
        raise SinkError(f"{sink}: {status.problem}; {far}; the same command goes on from there")
    return status, len(steps)


def _copied(reader: RunReader, mirror: Mirror, steps: list[int], episodes: int) -> Iterator[int]:
    """Copy the steps one by one, as fast as the sink takes them, until it fails."""
    opened = open_source(reader)
    diagnosis = Diagnosis(run_id=opened.run_id, run=opened.name)
    judged = judged_again(opened, diagnosis)
    stored: dict[int, list[Alarm]] = {}
    for alarm in reader.alarms():
        stored.setdefault(alarm.step, []).append(alarm)
    judged_step = -1
    for step, values in stored_rows(reader):
        if step < steps[0]:
            continue
        raised: list[Alarm] = []
        while judged_step < step:
            judged_step, alarms = next(judged, (step, []))
            raised += alarms if judged_step >= steps[0] else []
        metrics = StepMetrics(
            run_id=reader.run_id,
            step=step,
            phase="train",
            wall_time=0.0,
            values=values,
        )
        mirror.step(
            [metrics],
            trajectories=_episodes(reader, step, episodes) if shows_episodes(step) else (),
            alarms=stored.get(step, []) if stored else raised,
            verdict=diagnosis.verdict,
        )
        while mirror.num_waiting > MAX_WAITING and not mirror.has_failed():
            time.sleep(0.005)
        if mirror.has_failed():
            return
        yield step


def _episodes(reader: RunReader, step: int, count: int) -> list[Trajectory]:
    """Those that a table shows, without reading all of a step."""
    ids = reader.sql(
        "SELECT id FROM trajectories WHERE step = $1 ORDER BY split, sibling_index, id LIMIT $2",
        [step, count],
    )
    return [reader.trajectory(trajectory_id) for trajectory_id in ids.column("id").to_pylist()]
