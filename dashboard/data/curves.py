"""From the tables of a run to curves over an axis, and fewer points for the same picture. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric
from echoscope.store.records import FloatArray64

from ..charts import theme

AxisKind = Literal["step", "time", "tokens"]
FIXED_TASKS = ("eval/", "probe/")
"""Prefixes of what is measured on the same tasks every time."""
MANY_POINTS = 1_200
Zoom = tuple[float, float]
"""A part of the horizontal axis, in its own unit."""
AXES: tuple[AxisKind, ...] = ("step", "time", "tokens")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Axis:
    """Where on the horizontal axis each step lies."""

    kind: AxisKind
    title: str
    steps: NDArray[np.int64]
    """(S,), increasing."""
    positions: FloatArray64
    """(S,), one for each step."""
    wall_times: FloatArray64
    """(S,), seconds since the epoch; empty where the axis is of several runs."""

    def at(self, steps: Any) -> FloatArray64:
        """Positions of any steps, those between or outside of the known ones included, (N,)."""
        steps_asked = np.asarray(steps, dtype=np.float64)
        if not len(self.steps) or self.kind == "step":
            return steps_asked
        return np.interp(steps_asked, self.steps, self.positions)

    def clock(self, steps: Any) -> list[str]:
        """When steps ended, by this machine's clock: `12:03:11`; empty where it is not known."""
        positions = np.asarray(steps, dtype=np.float64)
        if not len(self.wall_times):
            return [""] * len(positions)
        seconds = np.interp(positions, self.steps, self.wall_times)
        offset = time.localtime(float(self.wall_times[-1])).tm_gmtoff
        moments = pd.to_datetime(seconds + offset, unit="s")
        return [str(text) for text in moments.strftime("%H:%M:%S")]


_NOTHING = np.empty(0)
AS_STEPS = Axis(
    kind="step",
    title="step",
    steps=_NOTHING.astype(np.int64),
    positions=_NOTHING,
    wall_times=_NOTHING,
)
"""Of any steps: each lies at its own number."""


def step_axis(steps: pd.DataFrame, kind: AxisKind = "step") -> Axis:
    """The axis of a run from its table `steps`.

    Time counts from the start of the first step there is, pauses included; tokens are those
    sampled in training so far.
    """
    steps = steps.sort_values("step")
    numbers = steps["step"].to_numpy(np.int64)
    wall = steps["wall_time"].to_numpy(np.float64)
    if kind == "time" and len(steps):
        first = np.nan_to_num(float(steps["step_s"].to_numpy(np.float64)[0]))
        elapsed = wall - wall[0] + first
        seconds, unit = (3600.0, "h") if elapsed[-1] > 7200 else (60.0, "min")
        if elapsed[-1] < 180:
            seconds, unit = 1.0, "s"
        positions, title = elapsed / seconds, f"time ({unit})"
    elif kind == "tokens" and len(steps):
        tokens = np.nan_to_num(steps["num_sampled_tokens"].to_numpy(np.float64, na_value=np.nan))
        positions, title = np.cumsum(tokens), "sampled tokens"
    else:
        positions, title = numbers.astype(np.float64), kind
    return Axis(kind=kind, title=title, steps=numbers, positions=positions, wall_times=wall)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Curve:
    """One metric of one run. A NaN is a gap; a step without a value is not there at all."""

    key: str
    """The raw key: shown on hover."""
    name: str
    steps: NDArray[np.int64]
    """(N,), increasing."""
    values: FloatArray64
    """(N,)"""
    low: FloatArray64 | None = None
    """(N,), the lower end of the interval; NaN where there is none."""
    high: FloatArray64 | None = None
    lowest: FloatArray64 | None = None
    """(N,), of all steps that a point stands for; None where each point is one step."""
    highest: FloatArray64 | None = None
    unit: str = ""
    color: str = theme.SERIES[0]
    dash: str = "solid"
    width: int = 2
    is_line: bool | None = None
    """Drawn as a line, or as points; None where its steps decide."""
    notes: Mapping[float, str] | None = None
    """Step -> what hovering says of the point besides its value; None for the time of day."""

    @property
    def has_values(self) -> bool:
        return bool(np.isfinite(self.values).any())

    @property
    def is_sparse(self) -> bool:
        """Measured now and then, or on tasks of its own: drawn as points, and never smoothed.

        An average of evaluations would stand where the run never was. A curve whose points stand
        for several steps counts as a line, whatever lies between them.
        """
        if self.is_line is not None:
            return not self.is_line
        if self.key.startswith(FIXED_TASKS):
            return True
        if self.lowest is not None and not np.array_equal(self.lowest, self.values, equal_nan=True):
            return False
        measured_steps = self.steps[np.isfinite(self.values)]
        if not 1 < len(measured_steps) <= MANY_POINTS:
            return False
        return bool(2 * (len(measured_steps) - 1) < measured_steps[-1] - measured_steps[0])


def curve(
    data: pd.DataFrame,
    key: str,
    *,
    name: str = "",
    has_interval: bool = False,
    color: str = theme.SERIES[0],
) -> Curve:
    """One key of a table with the columns `step`, `key`, `value`.

    `has_interval`: The table has the metrics `KEY_low` and `KEY_high`, too.
    """
    rows = data[data["key"] == key].sort_values("step")
    steps = rows["step"].to_numpy(np.int64)
    low, high = (_values_at(data, f"{key}_{end}", steps) for end in ("low", "high"))
    is_stored = has_interval and bool(np.isfinite(low).any())
    description = metric(key)
    has_spread = "lowest" in rows and bool(np.isfinite(rows["lowest"]).any())
    return Curve(
        key=key,
        name=name or description.name,
        unit=description.unit,
        steps=steps,
        values=rows["value"].to_numpy(np.float64, na_value=np.nan),
        low=low if is_stored else None,
        high=high if is_stored else None,
        lowest=rows["lowest"].to_numpy(np.float64) if has_spread else None,
        highest=rows["highest"].to_numpy(np.float64) if has_spread else None,
        color=color,
    )


def _values_at(data: pd.DataFrame, key: str, steps: NDArray[np.int64]) -> FloatArray64:
    """The values of a key at some steps, NaN where it has none."""
    ends = data[data["key"] == key]
    by_step = dict(zip(ends["step"].tolist(), ends["value"].tolist(), strict=True))
    return np.array([by_step.get(step, np.nan) for step in steps.tolist()], np.float64)


def describe(curves: Sequence[Curve]) -> str:
    """Curves in a sentence, for those who cannot see them."""
    parts = []
    for drawn in curves:
        finite = drawn.values[drawn.values == drawn.values]
        if len(finite):
            parts.append(
                f"{drawn.name}: {finite[-1]:.4g} {drawn.unit} at step {drawn.steps[-1]}, "
                f"from {finite[0]:.4g} (lowest {finite.min():.4g}, highest {finite.max():.4g})"
            )
    return "; ".join(parts) or "nothing measured yet"


def thinned(
    values: FloatArray64, lowest: FloatArray64, highest: FloatArray64, max_points: int
) -> tuple[NDArray[np.intp], FloatArray64, FloatArray64, FloatArray64]:
    """A curve as the means of equal stretches, with the lowest and the highest value of each.

    Methods that pick points (LTTB, the extremes of each stretch) pick the extremes of noise, and
    draw a zigzag that is in no data. A mean keeps the level, the range beside it every spike.

    Args:
        values: (N,), in the order of drawing, N > `max_points`.
        lowest: (N,), as `values` where a point is one step; and `highest`.
        max_points: B, at least 3.

    Returns:
        Where in the curve each point stands, increasing; the means of the finite values, NaN where
        there is none, the first and the last as given; the lowest; and the highest. All (B,).
    """
    starts = np.linspace(1, len(values) - 1, max_points - 1).astype(np.intp)[:-1]
    bounds = np.concatenate([[0], starts, [len(values) - 1, len(values)]])
    finite = np.isfinite(values)
    sums = np.add.reduceat(np.where(finite, values, 0.0), bounds[:-1])
    counts = np.add.reduceat(finite.astype(np.float64), bounds[:-1])
    lows, highs = (np.where(np.isfinite(end), end, np.nan) for end in (lowest, highest))
    return (
        (bounds[:-1] + bounds[1:] - 1) // 2,
        np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0),
        np.fmin.reduceat(lows, bounds[:-1]),
        np.fmax.reduceat(highs, bounds[:-1]),
    )


def success_keys(keys: Iterable[str], kinds: tuple[str, ...] = FIXED_TASKS) -> list[str]:
    """Success on tasks that never train: over all tags, or of each where none is over all."""
    of = [key for key in keys if key.startswith(kinds) and key.endswith("/success_rate")]
    return [key for key in of if key.split("/")[1] == "all"] or of


def tasks_key(key: str) -> str:
    """The metric that says how many fixed tasks a success rate is of; empty for any other metric.

    >>> tasks_key("eval/all/success_rate"), tasks_key("rollout/success_rate")
    ('eval/all/num_tasks', '')
    """
    name = key.removesuffix("/success_rate")
    return f"{name}/num_tasks" if key.startswith(FIXED_TASKS) and name != key else ""


def smoothed(values: FloatArray64, weight: float) -> FloatArray64:
    """Exponential moving average with the start corrected, as Adam does: no pull towards zero.

    `s_t = w s_(t-1) + (1 - w) y_t`, divided by `1 - w^t`. A NaN leaves a gap and is left out.

    Args:
        values: (N,)
        weight: 0 (as it is) to 0.99.

    Raises:
        ValueError: a weight outside [0, 1).
    """
    if not 0 <= weight < 1:
        raise ValueError(f"the smoothing weight is {weight}, but must lie in [0, 1)")
    if weight == 0:
        return values
    series = pd.Series(np.where(np.isfinite(values), values, np.nan))
    means = series.ewm(alpha=1 - weight, adjust=True, ignore_na=True).mean().to_numpy(np.float64)
    return np.where(np.isfinite(values), means, np.nan)


def full_range(values: FloatArray64, *, log_y: bool) -> tuple[float, float] | None:
    """A range of the y axis with every value and a twentieth around them.

    In logarithms of ten where `log_y`. None where there is nothing to range over.
    """
    finite = values[np.isfinite(values)]
    if log_y:
        finite = np.log10(finite[finite > 0])
    if len(finite) < 2 or finite.min() == finite.max():
        return None
    around = 0.05 * float(np.ptp(finite))
    return float(finite.min()) - around, float(finite.max()) + around


def usual_range(values: FloatArray64) -> tuple[float, float]:
    """The lowest and the highest value that a chart has to show: without a few far outliers.

    An outlier lies further from the middle half than six times its width. Outliers are left out if
    they are at most one in a hundred (or one), and the rest would fill less than a third of the
    height beside them: a level that has changed for good is none.

    >>> usual_range(np.array([1.0, 2.0, 1.5, 1.2, 250.0, 1.8, 1.1, 1.9]))
    (1.0, 2.0)

    Args:
        values: (N,), with at least one that is finite.
    """
    finite = values[np.isfinite(values)]
    full = float(finite.min()), float(finite.max())
    low, high = np.quantile(finite, [0.25, 0.75])
    around = 6.0 * (high - low)
    usual = finite[(finite >= low - around) & (finite <= high + around)]
    is_few = len(finite) - len(usual) <= max(1, len(finite) // 100)
    if not is_few or np.ptp(usual) == 0 or 3.0 * np.ptp(usual) > full[1] - full[0]:
        return full
    return float(usual.min()), float(usual.max())
