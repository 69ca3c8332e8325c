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
from echoscope.diagnostics.judge.courses.channels import REWARD_AS_SUCCESS
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.text.amounts import counted

from ..data.curves import FIXED_TASKS, downsample
from ..labels import value_words
from .curated import eval_keys

SPARK_POINTS = 48
"""Points of the small curve of a tile at most."""
NOTHING = "not measured"
FEW_EPISODES = 30
"""A change that rests on fewer training episodes a step is shown with their number."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """What one tile shows."""

    name: str
    key: str
    chart: str
    help: str = ""
    """Empty where the metric's own sentence says it."""
    is_from_best: bool = False
    """Whether the change counts from the best value; else from the first."""
    is_rest: bool = False
    """Whether the tile shows what is left of a share: 1 - value."""
    is_of_training: bool = False
    """Whether it is a mean over the training episodes of a step."""


_EVALUATION = (
    "Success on fixed tasks that never train, with its 95 % interval. Higher is better; "
    "worry when it falls below the interval of its best."
)
_SIGNAL = (
    "Groups whose siblings earned different rewards. Only these give a gradient. Worry below 25 %."
)
_STEP = "Steps done, of those planned; the time of a step; and the time that is left."
_SUCCESS = _Number(
    name="Training success",
    key="rollout/success_rate",
    chart="success",
    is_from_best=True,
    is_of_training=True,
)
_BY_REWARD = _Number(
    name="Training success", key=REWARD_AS_SUCCESS, chart="success", is_from_best=True
)
"""Of metrics that say a mean reward between 0 and 1, and no success."""
_RETURN = _Number(
    name="Training return",
    key="reward/return_mean",
    chart="return",
    is_from_best=True,
    is_of_training=True,
)
_TRAINING = (_SUCCESS, _BY_REWARD)
_OTHERS = (
    _Number(name="Policy entropy", key="policy/entropy", chart="entropy"),
    _Number(
        name="Groups with signal",
        key="reward/zero_std_frac",
        chart="groups",
        help=_SIGNAL,
        is_rest=True,
    ),
    _Number(name="Response tokens", key="rollout/response_length_mean", chart="length"),
)


def _numbers(known: Sequence[str]) -> list[_Number]:
    """The numbers that a run's tiles show, the first first."""
    evaluated = next(iter(eval_keys(known)), "")
    evaluation = _Number(
        name="Evaluation success",
        key=evaluated,
        chart="success",
        help=_EVALUATION,
        is_from_best=True,
    )
    training = next((number for number in _TRAINING if number.key in known), _RETURN)
    return [evaluation, training, *_OTHERS]


def training_success(known: Sequence[str]) -> str:
    """The metric that the tile of the training success shows; "" where the run has none."""
    return next((number.key for number in _TRAINING if number.key in known), "")


def tile_keys(known: Sequence[str]) -> list[str]:
    """The metrics that the tiles of a run read, of those that the run has."""
    wanted = {number.key + end for number in _numbers(known) for end in ("", "_low", "_high")}
    return sorted(wanted & set(known))


def tiles(
    data: pd.DataFrame,
    known: Sequence[str],
    *,
    evidence: Sequence[str],
    progress: tuple[str, str],
    episodes: Mapping[int, int] | None = None,
) -> list[Tile]:
    """The six tiles of a run.

    Args:
        data: columns step, key, value: of `tile_keys` at least.
        known: The metrics that the run has.
        evidence: Metrics that the verdict rests on; may hold `*`.
        progress: Value and second line of the tile that says how far the run is.
        episodes: Step -> its training episodes, where that is known.
    """
    series = {str(key): rows for key, rows in data.groupby("key", observed=True)}
    done, pace = progress
    return [
        *(_tile(number, series, evidence, episodes or {}) for number in _numbers(known)),
        Tile(name="Step", value=done, change=pace, help=_STEP, chart="speed"),
    ]


def _tile(
    number: _Number,
    series: Mapping[str, pd.DataFrame],
    evidence: Sequence[str],
    episodes: Mapping[int, int],
) -> Tile:
    help = number.help or metric(number.key).help
    steps, values = _points(series.get(number.key))
    if not len(values):
        return Tile(name=number.name, value="-", change=NOTHING, help=help, chart=number.chart)
    if number.is_rest:
        values = 1.0 - values
    change = _change(number.key, steps, values, is_from_best=number.is_from_best)
    if number.is_of_training:
        change += _few_words([episodes[step] for step in steps.tolist() if step in episodes])
    return Tile(
        name=number.name,
        value=_value(number.key, series, values),
        change=change,
        help=help,
        chart=number.chart,
        spark=_spark(values),
        is_evidence=any(fnmatch.fnmatchcase(number.key, pattern) for pattern in evidence),
    )


def _points(rows: pd.DataFrame | None) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Steps and finite values of a metric, by step."""
    if rows is None:
        return np.empty(0, np.int64), np.empty(0)
    rows = rows.sort_values("step")
    values = rows["value"].to_numpy(np.float64, na_value=np.nan)
    is_known = np.isfinite(values)
    return rows["step"].to_numpy(np.int64)[is_known], values[is_known]


def _value(key: str, series: Mapping[str, pd.DataFrame], values: NDArray[np.float64]) -> str:
    words = value_words(key, float(values[-1]))
    if not key.startswith(FIXED_TASKS):
        return words
    low, high = (_points(series.get(f"{key}_{end}"))[1] for end in ("low", "high"))
    if not len(low) or not len(high):
        return words
    return f"{words} ({100 * low[-1]:.0f} to {100 * high[-1]:.0f})"


def _change(
    key: str, steps: NDArray[np.int64], values: NDArray[np.float64], *, is_from_best: bool
) -> str:
    """How a number has changed, in a few words; the tests show each form."""
    if len(values) == 1:
        return f"measured once, at step {steps[0]}"
    first, best, now = float(values[0]), float(values.max()), float(values[-1])
    if metric(key).unit != SHARE:
        return f"was {value_words(key, first)} at step {steps[0]}"
    rise = f"{_points_words(100 * (now - first), '+')} since step {steps[0]}"
    if not is_from_best:
        return rise
    if now >= best:
        return f"best so far, {rise}"
    below = _points_words(100 * (best - now))
    return f"{below} below the best (step {steps[int(values.argmax())]})"


def _few_words(counts: Sequence[int]) -> str:
    """On how many episodes each step rests; empty where they are enough.

    >>> _few_words([4, 4]), _few_words([1, 2]), _few_words([1]), _few_words([64, 64])
    (' (4 episodes a step)', ' (1 to 2 episodes a step)', ' (1 episode)', '')
    """
    if not counts or min(counts) >= FEW_EPISODES:
        return ""
    if len(counts) == 1:
        return f" ({counted(counts[0], 'episode')})"
    low, high = min(counts), max(counts)
    return f" ({counted(low, 'episode') if low == high else f'{low} to {high} episodes'} a step)"


def _points_words(points: float, sign: str = "-") -> str:
    """`+12 points`, `1 point`; less than half a point is none.

    >>> _points_words(12.3, "+"), _points_words(0.8), _points_words(0.2, "+")
    ('+12 points', '1 point', '0 points')
    """
    whole = round(points)
    number = format(whole, f"{sign}d") if whole else "0"
    return f"{number} point{'s' if abs(whole) != 1 else ''}"


def _spark(values: NDArray[np.float64]) -> tuple[float | None, ...]:
    at = downsample(values, SPARK_POINTS)
    return tuple(float(f"{value:.4g}") for value in values[at])
