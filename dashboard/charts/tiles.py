"""The six tiles at the top of the Live page: a number, how it has changed, and its course. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from echoscope.diagnostics.catalogue import metric

from ..data.curves import FIXED_TASKS, downsample
from ..labels import value_words
from .curated import eval_keys

SPARK_POINTS = 48
"""Points of the small curve of a tile at most."""
NOTHING = "not measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One tile as the browser shows it."""

    name: str
    """One to three words."""
    value: str
    change: str
    """How the number has changed, or why there is none."""
    help: str
    """What the number is, what is good, and when to worry."""
    chart: str
    """Name of the chart that a click scrolls to."""
    spark: tuple[float | None, ...] = ()
    is_evidence: bool = False
    """Whether the verdict rests on this number."""

    def to_json(self) -> dict[str, Any]:
        """As the page's script takes it."""
        return asdict(self)


def tile_keys(known: Sequence[str]) -> list[str]:
    """The metrics that the tiles of a run read, of those that the run has."""
    wanted = {
        "rollout/success_rate",
        "reward/return_mean",
        "policy/entropy",
        "reward/zero_std_frac",
        "rollout/response_length_mean",
    }
    ends = ("", "_low", "_high")
    return sorted((wanted | {key + end for key in eval_keys(known) for end in ends}) & set(known))


def tiles(
    data: pd.DataFrame,
    known: Sequence[str],
    *,
    evidence: Sequence[str],
    progress: tuple[str, str],
) -> list[Tile]:
    """The six tiles of a run.

    Args:
        data: columns step, key, value: of `tile_keys` at least.
        known: The metrics that the run has.
        evidence: Metrics that the verdict rests on; may hold `*`.
        progress: Value and second line of the tile that says how far the run is.
    """
    series = {str(key): rows for key, rows in data.groupby("key", observed=True)}

    def is_evidence(key: str) -> bool:
        return any(fnmatch.fnmatchcase(key, pattern) for pattern in evidence)

    def tile(name: str, key: str, chart: str, help: str, *, against: str) -> Tile:
        steps, values = _points(series.get(key))
        if not len(values):
            return Tile(name=name, value="-", change=NOTHING, help=help, chart=chart)
        return Tile(
            name=name,
            value=_value(key, series, values),
            change=_change(key, steps, values, against),
            help=help,
            chart=chart,
            spark=_spark(values),
            is_evidence=is_evidence(key),
        )

    evaluated = eval_keys(known)
    success = "rollout/success_rate" if "rollout/success_rate" in series else "reward/return_mean"
    signal = series.get("reward/zero_std_frac")
    if signal is not None:
        series["signal"] = signal.assign(value=1.0 - signal["value"])
    groups = tile(
        "Groups with signal",
        "signal",
        "groups",
        "Groups whose siblings earned different rewards. Only these give a gradient. "
        "Worry below 25 %.",
        against="start",
    )
    done, pace = progress
    return [
        tile(
            "Evaluation success",
            evaluated[0] if evaluated else "",
            "success",
            "Success on fixed tasks that never train, with its 95 % interval. Higher is better; "
            "worry when it falls below the interval of its best.",
            against="best",
        ),
        tile(
            "Training success" if success == "rollout/success_rate" else "Training return",
            success,
            "success" if success == "rollout/success_rate" else "return",
            metric(success).help + " Higher is better.",
            against="best",
        ),
        tile(
            "Policy entropy",
            "policy/entropy",
            "entropy",
            metric("policy/entropy").help,
            against="start",
        ),
        _with_evidence(groups, is_evidence("reward/zero_std_frac")),
        tile(
            "Response tokens",
            "rollout/response_length_mean",
            "length",
            metric("rollout/response_length_mean").help,
            against="start",
        ),
        Tile(
            name="Step",
            value=done,
            change=pace,
            help="Steps done, of those planned; the time of a step; and the time that is left.",
            chart="speed",
        ),
    ]


def _with_evidence(tile: Tile, is_evidence: bool) -> Tile:
    fields = {name: getattr(tile, name) for name in Tile.__slots__}
    return Tile(**{**fields, "is_evidence": is_evidence})


def _points(rows: pd.DataFrame | None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and finite values of a metric, by step."""
    if rows is None:
        return np.empty(0, np.int64), np.empty(0)
    rows = rows.sort_values("step")
    values = rows["value"].to_numpy(np.float64, na_value=np.nan)
    is_known = np.isfinite(values)
    return rows["step"].to_numpy(np.int64)[is_known], values[is_known]


def _value(key: str, series: Mapping[str, pd.DataFrame], values: NDArray[np.float64]) -> str:
    words = f"{100 * values[-1]:.3g} %" if key == "signal" else value_words(key, float(values[-1]))
    if not key.startswith(FIXED_TASKS):
        return words
    low, high = (_points(series.get(f"{key}_{end}"))[1] for end in ("low", "high"))
    if not len(low) or not len(high):
        return words
    return f"{words} ± {50 * (high[-1] - low[-1]):.2g}"


def _change(key: str, steps: NDArray[np.int64], values: NDArray[np.float64], against: str) -> str:
    """`13 points below the best (step 20)`, `the best so far`, `0.3 at step 0`."""
    if len(values) == 1:
        return f"measured once, at step {steps[0]}"
    is_share = key == "signal" or value_words(key, 0.5).endswith("%")
    at = int(np.argmax(values)) if against == "best" else 0
    before, now, step = float(values[at]), float(values[-1]), int(steps[at])
    if against == "best" and now >= before:
        first = float(values[0])
        since = f"{100 * (now - first):+.0f} points since step {steps[0]}, " if is_share else ""
        return f"{since}the best"
    if is_share and against == "best":
        return f"{100 * (before - now):.0f} points below the best (step {step})"
    if is_share:
        return f"{100 * (now - before):+.0f} points since step {step}"
    return f"{value_words(key, before)} at step {step}"


def _spark(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    at = downsample(values, SPARK_POINTS)
    return tuple(float(f"{value:.4g}") for value in values[at])
