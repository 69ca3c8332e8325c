"""Curves and levels of groups of runs, read from the runs: bands over steps, means of a window.

Steps of a long run are averaged in equal ranges, the same in all runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.query.metric_keys import SUCCESS_RATE
from echoscope.store.reader import RunReader
from echoscope.store.records import FloatArray64

from .. import queries
from ..curves import AS_STEPS, FIXED_TASKS, Axis, AxisKind, Curve, smoothed, tasks_key
from .groups import RunGroup
from .levels import NUM_STRETCHES, RunLevel, Trials, mean_bands, share_bands

USUAL_STEPS = 20
"""Of a window: in fewer, the steps of one run are too much alike to tell how sure its mean is."""
MAX_BUCKETS = 400
"""Points of a curve."""
_EPISODES = "(episodes)"
"""In place of a key: training episodes of a range of steps."""


def bucket_width(last_step: int) -> int:
    """Steps that are averaged to one point of a curve.

    >>> bucket_width(40), bucket_width(399), bucket_width(100_000)
    (1, 1, 251)
    """
    return max(last_step, 0) // MAX_BUCKETS + 1


@queries.kept
def bucketed(run: RunReader, keys: Sequence[str], width: int) -> pd.DataFrame:
    """Means of metrics in ranges of `width` steps: columns key, bucket, value, num_points.

    What success rates were counted from is among them.
    """
    steps = run.steps().select(["step", "num_trajectories"]).to_pandas()
    episodes = steps.assign(bucket=steps["step"] // width, key=_EPISODES)
    sums = _of_buckets(episodes, "num_trajectories", "sum")
    return pd.concat([bucket_means(run, keys, width), sums], ignore_index=True)


def bucket_means(run: RunReader, keys: Sequence[str], width: int) -> pd.DataFrame:
    """As `bucketed`, without the episodes."""
    points = run.points([*keys, *filter(None, map(tasks_key, keys))])
    rows = points.filter(pc.is_finite(pc.field("value"))).select(["step", "key", "value"])
    frame = rows.to_pandas()
    return _of_buckets(frame.assign(bucket=frame["step"] // width), "value", "mean")


def _of_buckets(rows: pd.DataFrame, column: str, how: str) -> pd.DataFrame:
    """One row a key and bucket, in order."""
    of_key = rows.groupby(["key", "bucket"], as_index=False)
    table: pd.DataFrame = of_key.agg(value=(column, how), num_points=(column, "size"))
    return table.astype({"value": np.float64})


def mean_curve(
    group: RunGroup,
    key: str,
    tables: Mapping[str, pd.DataFrame],
    axes: Mapping[str, Axis],
    *,
    width: int,
    smooth: float,
    color: str,
) -> Curve:
    """One metric of a group: mean over its runs, with the 95 % interval of that mean.

    Each run is smoothed before the mean is taken, so that the band is that of the smoothed curves.

    Args:
        tables: run -> what `bucketed` gave.
        axes: run -> where its steps lie; a point lies at the mean over the runs that have it.
    """
    table = pd.concat({run: tables[run] for run in group.runs}, names=["run"]).reset_index("run")
    rows = table[table["key"] == key]
    values = rows.pivot(index="run", columns="bucket", values="value").reindex([*group.runs])
    buckets: NDArray[np.int64] = values.columns.to_numpy(np.int64)
    values_RS = values.to_numpy(np.float64)
    points_S = rows.groupby("bucket")["num_points"].sum().to_numpy(np.float64)
    span = width * (buckets[-1] - buckets[0] + 1) if len(buckets) else 0
    is_line = not key.startswith(FIXED_TASKS) and 2 * points_S.sum() >= span * len(group.runs)
    if smooth and is_line:
        values_RS = np.array([smoothed(values_S, smooth) for values_S in values_RS])
    if metric(key).unit == SHARE and not ((values_RS < 0) | (values_RS > 1)).any():
        trials = _curve_trials(key, table, buckets, points_S)
        mean, low, high = share_bands(values_RS, trials)
    else:
        mean, low, high = mean_bands(values_RS)
    steps = np.asarray(buckets * width + (width - 1) / 2, np.float64)
    positions = _positions(steps, [axes[run] for run in group.runs], values_RS)
    num_runs = np.isfinite(values_RS).sum(axis=0).tolist()
    return Curve(
        key=key,
        name=group.name,
        unit=metric(key).unit,
        steps=positions,
        values=mean,
        low=low if np.isfinite(low).any() else None,
        high=high if np.isfinite(high).any() else None,
        color=color,
        is_line=is_line,
        notes={
            position: f"{num} of {len(group.runs)} runs"
            for position, num in zip(positions.tolist(), num_runs, strict=True)
        },
    )


def _curve_trials(
    key: str, table: pd.DataFrame, buckets: NDArray[np.int64], points_S: FloatArray64
) -> Trials:
    counted_by = _EPISODES if key == SUCCESS_RATE else tasks_key(key)
    sums = table[table["key"] == counted_by].groupby("bucket")["value"].sum()
    num_S = sums.reindex(buckets, fill_value=0.0).to_numpy(np.float64)
    is_known = bool(counted_by) and bool((num_S > 0).all())
    return Trials(num=num_S if is_known else points_S, is_known=is_known)


def _positions(
    steps: FloatArray64, axes: Sequence[Axis], values_RS: FloatArray64
) -> NDArray[np.int64]:
    """Where the points lie; never backwards, when a run ends before the others."""
    at_RS = np.ma.masked_array([axis.at(steps) for axis in axes], ~np.isfinite(values_RS))
    means: NDArray[np.int64] = np.maximum.accumulate(at_RS.mean(axis=0).filled(0.0))
    return means


def drawn_axis(axes: Mapping[str, Axis], kind: AxisKind) -> Axis:
    """The axis of a chart whose curves know their positions already."""
    # With no steps of its own, it takes positions as they are.
    return replace(AS_STEPS, kind=kind, title=next(iter(axes.values())).title)


def run_level(
    run_id: str,
    table: pd.DataFrame,
    key: str,
    window: tuple[int, int],
    *,
    width: int,
    seed: str | None,
    played: str | None = None,
) -> RunLevel:
    """One metric of a run from the first to the last step of a window, both included.

    Args:
        table: what `bucketed` gave for ranges of `width` steps. A range counts where it begins.
        played: As `RunLevel` has it.
    """
    first, last = window
    steps = table["bucket"] * width
    inside = table[(steps >= first) & (steps <= last)]
    rows = inside[inside["key"] == key]
    values, points = (rows[name].to_numpy(np.float64) for name in ("value", "num_points"))
    first_steps = rows["bucket"].to_numpy(np.int64) * width
    stretch_of_row = (first_steps - first) * NUM_STRETCHES // (last - first + 1)
    sums, counts = (np.bincount(stretch_of_row, of) for of in (values * points, points))
    stretches = sums[counts > 0] / counts[counts > 0]
    num_points = int(points.sum())
    tasks = inside.loc[inside["key"] == tasks_key(key), "value"] if tasks_key(key) else None
    episodes = inside.loc[inside["key"] == _EPISODES, "value"] if key == SUCCESS_RATE else None
    return RunLevel(
        run=run_id,
        seed=seed,
        played=played,
        stretches=tuple(stretches.tolist()),
        mean=float(values @ points / num_points) if num_points else math.nan,
        num_points=num_points,
        num_episodes=0 if episodes is None else int(episodes.sum()),
        # The same tasks every time: a second evaluation adds none.
        num_tasks=0 if tasks is None or tasks.empty else int(tasks.max()),
    )


def default_window(last_steps: Sequence[int]) -> tuple[int, int]:
    """The last quarter of the steps that all runs have, at least `USUAL_STEPS` if there are.

    A run of a single step does not count: it would leave no steps to compare the others in.

    >>> default_window([40, 60, 0]), default_window([4]), default_window([2_000])
    ((21, 40), (0, 4), (1501, 2000))
    """
    several = [last for last in last_steps if last > 0]
    last = min(several, default=0)
    return max(0, last - max(USUAL_STEPS, last // 4) + 1), last
