"""What the Diagnosis page draws, as small tables: pure, from metrics and diagnostic records.

Legend: **N** prompts, **P** groups.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence

import pandas as pd

from echoscope.diagnostics.judge.advice.situation import Situation, situation_of
from echoscope.diagnostics.judge.regimes import RegimeTracker, point_of
from echoscope.store.log.layout import shown_path
from echoscope.store.reader import RunReader
from echoscope.store.records import DiagnosticRecord, FloatArray64

REGIME_KEYS = (
    *(
        f"info/{family}/{name}"
        for family in ("first_turn", "all_turns")
        for name in (
            "conditional_entropy_per_token",
            "conditional_entropy_per_token_low",
            "conditional_entropy_per_token_high",
            "dependence",
            "mutual_information_low",
            "mutual_information_high",
            "num_prompts",
        )
    ),
    "text/conditional_entropy",
    "text/dependence",
)
"""What `regime_path` reads."""

MAX_GROUP_STEPS = 120
"""Columns of the group heat map; more steps are thinned out evenly."""
GROUP_KINDS = ("hopeless", "constant", "mixed", "solved")


def regime_path(series: pd.DataFrame) -> tuple[pd.DataFrame, tuple[float, float]] | None:
    """The run's way over the plane of H(Z|X) and dependence; None without a measurement.

    Args:
        series: Metrics in long form: step, key, value.

    Returns:
        step, entropy, entropy_low, entropy_high, dependence, dependence_low, dependence_high,
        regime: one row per measurement, in order. Then the nats per token below which H(Z|X) counts
        as low, and the border of dependence, as of the last measurement.
    """
    tracker = RegimeTracker()
    rows = []
    for step, part in series.groupby("step", sort=True):
        values = dict(zip(part["key"], part["value"], strict=True))
        point = point_of(values)
        if point is None:
            continue
        regime = tracker.observe(values)
        entropy = (point.entropy, *point.entropy_interval)
        dependence = (point.dependence, *point.dependence_interval)
        rows.append((point.source, int(str(step)), *entropy, *dependence, regime.value))
    if not rows:
        return None
    measured = [
        f"{name}{end}" for name in ("entropy", "dependence") for end in ("", "_low", "_high")
    ]
    points = pd.DataFrame(rows, columns=["source", "step", *measured, "regime"])
    of_source = points[points["source"] == tracker.source]
    return of_source.reset_index(drop=True), tracker.borders()


Curves = Mapping[str, tuple[FloatArray64, FloatArray64]]
"""Family -> numbers of tokens k, (K,), and I(X; first k tokens of Z) in nats, (K,)."""


def information_curves(record: DiagnosticRecord) -> Curves:
    """The curves of a record of kind `information` that hold something; files are not trusted."""
    arrays = record.arrays
    names = [name.removesuffix("_curve") for name in arrays if name.endswith("_curve")]
    pairs = {name: (arrays.get(f"{name}_curve_k"), arrays[f"{name}_curve"]) for name in names}
    return {
        name: (k, curve)
        for name, (k, curve) in pairs.items()
        if k is not None and k.shape == curve.shape and len(curve)
    }


_GRID = """
WITH groups AS (
  SELECT step, group_index, nullif(stddev_samp(episode_return), 'nan') AS reward_std,
         avg(episode_return) AS return_mean, avg(is_success::INT) AS success_frac
  FROM trajectories WHERE split IN ('train', 'import') AND list_contains($1, step)
  GROUP BY step, group_index HAVING count(*) > 1
), kinds AS (
  -- Without rewards, success tells a mixed group; where all rewards are equal nothing is learned.
  SELECT *, CASE
    WHEN reward_std > 0 OR (reward_std IS NULL AND success_frac > 0 AND success_frac < 1)
      THEN 'mixed'
    WHEN success_frac = 1 THEN 'solved' WHEN success_frac = 0 THEN 'hopeless' ELSE 'constant'
  END AS kind FROM groups
)
SELECT step, group_index, kind, reward_std, return_mean, row_number() OVER (
  PARTITION BY step ORDER BY list_position($2, kind), reward_std NULLS LAST, group_index
) - 1 AS rank
FROM kinds WHERE reward_std IS NOT NULL OR kind <> 'constant' ORDER BY step, rank
"""


def group_grid(run: RunReader, steps: Sequence[int]) -> pd.DataFrame:
    """Groups of some steps, sorted so that the heat map reads as a stack.

    Returns:
        step, rank (0 at the bottom), group_index, kind (see GROUP_KINDS), reward_std, return_mean.
        A trajectory without siblings is left out, and so is a group of which neither the rewards
        nor the success are known.
    """
    frame: pd.DataFrame = run.sql(_GRID, [tuple(steps), GROUP_KINDS]).to_pandas()
    return frame


def situation(run: RunReader) -> Situation:
    """What advice knows of a run: its settings and when they changed."""
    return situation_of(run, shlex.quote(shown_path(run.path)))


def gradient_table(values: Mapping[str, float]) -> pd.DataFrame:
    """Norm, signal share and cosine with the rest of every term and bucket of one step.

    Args:
        values: `gradient/...` metrics of the step.
    """
    columns = {"norm": "norm", "signal_frac": "signal share", "cosine_rest": "cosine with the rest"}
    rows = [(*key.split("/")[1:], value) for key, value in values.items() if key.count("/") == 3]
    numbers = pd.DataFrame(rows, columns=["term", "bucket", "name", "value"])
    numbers = numbers[numbers["name"].isin(columns)]
    table = numbers.pivot(index=["term", "bucket"], columns="name", values="value")
    table = table.reindex(columns=list(columns)).rename(columns=columns).reset_index()
    table["num_groups"] = [
        values.get(f"gradient/{bucket}/num_groups", math.nan) for bucket in table["bucket"]
    ]
    return table
