"""Tables of a run that figures are drawn from, asked of its reader. Nothing is kept here.

`queries` keeps the answers for pages; a notebook asks directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from echoscope.store.reader import RunReader
from echoscope.store.records import DiagnosticRecord

MAX_POINTS = 2_000
EXACT_STEPS = 20_000
"""Runs up to this long are smoothed from every point; longer ones from means of ranges."""

# A semi-join, not list_contains: DuckDB turns it into a filter of the scan, half the time of one.
_EACH = """
SELECT step, key, value FROM metrics
WHERE key IN (SELECT unnest($1)) AND ($2 IS NULL OR phase = $2) ORDER BY key, step
"""
_COARSE = """
SELECT key, min(step) AS first_step, arg_min(value, step) AS first,
       max(step) AS last_step, arg_max(value, step) AS last,
       avg(value) AS value, min(value) AS lowest, max(value) AS highest
FROM metrics
WHERE key IN (SELECT unnest($1)) AND ($2 IS NULL OR phase = $2) AND isfinite(value)
GROUP BY key, step // $3 ORDER BY key, first_step
"""


def series(
    run: RunReader,
    keys: Sequence[str],
    phase: str | None = None,
    *,
    max_points: int | None = MAX_POINTS,
) -> pd.DataFrame:
    """Metrics over the run: columns step, key, value; by key, then step.

    A run with more steps than `max_points` is cut into equal ranges of steps. Each is a row at its
    middle: the mean of its finite values, with columns `lowest` and `highest`, so that noise stays
    level and a spike stays to be seen. The first and the last value are rows of their own.

    Args:
        phase: "train" or "eval"; None for both.
        max_points: Points per key at most, roughly; None for all.
    """
    width = 1 if max_points is None else -(-(run.info().last_step + 1) // max_points)
    if width == 1:
        frame: pd.DataFrame = run.sql(_EACH, [list(keys), phase]).to_pandas()
        return frame
    ranges = run.sql(_COARSE, [list(keys), phase, width]).to_pandas()
    by_key = ranges.groupby("key", observed=True)
    starts, ends = by_key.head(1), by_key.tail(1)
    ranges["step"] = (ranges["first_step"] + ranges["last_step"] + 1) // 2
    rows = [ranges, _single(starts, "first"), _single(ends, "last")]
    table: pd.DataFrame = pd.concat([part[[*_SPREAD, "step", "key", "value"]] for part in rows])
    table = table.drop_duplicates(["key", "step"], keep="last").sort_values(["key", "step"])
    table["step"] = table["step"].astype("int32")
    return table.reset_index(drop=True)


_SPREAD = ("lowest", "highest")


def _single(ranges: pd.DataFrame, end: str) -> pd.DataFrame:
    """The first or the last value of ranges, as rows."""
    values = dict.fromkeys(("value", *_SPREAD), ranges[end])
    return ranges.assign(step=ranges[f"{end}_step"], **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A metric over a run: where it began, where it is, and means between."""

    first_step: int
    first: float
    last: float
    num_points: int
    """Finite values."""
    means: Sequence[float]
    """Of the finite values in each of at most `OUTLINE_PARTS` equal ranges of steps."""


OUTLINE_PARTS = 48
_OUTLINE = """
SELECT key, min(first_step) AS first_step, arg_min(first, first_step) AS first,
       arg_max(last, first_step) AS last, sum(num_points)::INT AS num_points,
       list(mean ORDER BY first_step) AS means
FROM (
  SELECT key, min(step) AS first_step, arg_min(value, step) AS first,
         arg_max(value, step) AS last, count(*) AS num_points, avg(value) AS mean
  FROM metrics WHERE key IN (SELECT unnest($1)) AND isfinite(value) GROUP BY key, step // $2
) GROUP BY key
"""


def outlines(run: RunReader, keys: Sequence[str]) -> dict[str, Outline]:
    """By metric, of those that have a finite value. Nothing is left out of a mean."""
    width = max(1, -(-(run.info().last_step + 1) // OUTLINE_PARTS))
    rows = run.sql(_OUTLINE, [list(keys), width]).to_pylist()
    return {row.pop("key"): Outline(**row) for row in rows}


def trajectory_steps(run: RunReader) -> list[int]:
    """Steps that have trajectories, in order."""
    rows = run.sql("SELECT DISTINCT step FROM trajectories ORDER BY step")
    return [int(step) for step in rows.column("step").to_pylist()]


def diagnostic_steps(run: RunReader, kind: str) -> list[int]:
    """Steps at which a diagnostic of this kind was stored, in order."""
    rows = run.sql("SELECT DISTINCT step FROM diagnostics WHERE kind = $1 ORDER BY step", [kind])
    return [int(step) for step in rows.column("step").to_pylist()]


def diagnostic_near(run: RunReader, kind: str, step: int | None) -> DiagnosticRecord | None:
    """The diagnostic of a kind at the step nearest to one, None for the newest.

    None where there is none.
    """
    steps = diagnostic_steps(run, kind)
    target = steps[-1] if steps and step is None else step
    near = min(steps, key=lambda measured: abs(measured - (target or 0)), default=None)
    records = () if near is None else run.diagnostics(near)
    return next((record for record in reversed(records) if record.kind == kind), None)
