"""Healthy stretches of real runs drawn again: what alarms would fire by chance alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.judge.alarms import AlarmEngine
from echoscope.diagnostics.read.table import MetricTable

WARM_ROWS = 20
"""Rows of a healthy stretch that are left out: the policy still changes fast there."""
MIN_STRETCH = 40
MARGIN = 10
"""Steps before the first sign of trouble that are left out, too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FalseAlarms:
    """Alarms on stretches where nothing happened."""

    num_stretches: int
    num_steps: int
    num_critical: int
    """Times that a critical alarm was raised."""
    num_warnings: int

    def per_1000(self, count: int) -> float:
        return 1000 * count / self.num_steps if self.num_steps else math.nan


def resampled_false_alarms(
    runs: Sequence[LabelledRun], *, draws: int, length: int = 200, block: int = 20, seed: int = 0
) -> FalseAlarms:
    """Alarms on block-bootstrapped healthy stretches: what happens to fire by chance alone.

    Of each run that did not collapse all rows after the first 20 are used, of one that did those
    up to ten steps before the first sign; trends are taken out, noise and its autocorrelation
    within a block stay.
    """
    rng = np.random.default_rng(seed)
    stretches = [stretch for run in runs if (stretch := healthy_stretch(run)) is not None]
    num_critical = num_warnings = num_steps = 0
    for _ in range(draws):
        for stretch in stretches:
            names, rows = stretch
            drawn = block_bootstrap(rows, length, min(block, len(rows)), rng)
            engine = AlarmEngine()
            for step, row in enumerate(drawn):
                values = dict(zip(names, row.tolist(), strict=True))
                for event in engine.observe(step, values):
                    is_raised = event.state.value == "raised"
                    num_critical += is_raised and event.severity.value == "critical"
                    num_warnings += is_raised and event.severity.value == "warning"
            num_steps += length
    return FalseAlarms(
        num_stretches=len(stretches),
        num_steps=num_steps,
        num_critical=num_critical,
        num_warnings=num_warnings,
    )


def healthy_stretch(run: LabelledRun) -> tuple[list[str], NDArray[np.float64]] | None:
    """Names and rows (r, C) without trends of the part where nothing happened; None if short."""
    if not run.counts:
        return None
    end = math.inf
    if run.is_collapsed:
        signs = [step for step in (run.onset_step, run.halved_step) if step is not None]
        end = min(signs, default=0) - MARGIN
    inside = run.table.steps < end
    inside[:WARM_ROWS] = False
    if inside.sum() < MIN_STRETCH:
        return None
    return _flat_rows(run.table, inside)


def _flat_rows(
    table: MetricTable, inside: NDArray[np.bool_]
) -> tuple[list[str], NDArray[np.float64]]:
    names = list(table.columns)
    columns = []
    for name in names:
        values = without_trend(table.columns[name][inside])
        is_rate = name.endswith(("_frac", "_rate", "dependence"))
        floor = 0.0 if np.nanmin(table.columns[name]) >= 0 else -math.inf
        columns.append(np.clip(values, floor, 1.0 if is_rate else math.inf))
    return names, np.column_stack(columns)


def block_bootstrap(
    rows: NDArray[np.float64], length: int, block: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(length, C) rows drawn in whole blocks from `rows` (R, C), so that neighbours stay together.

    Moving blocks (Kuensch 1989): autocorrelation within `block` rows survives.

    Raises:
        ValueError: fewer rows than one block, or a block of none.
    """
    if not 1 <= block <= len(rows):
        raise ValueError(f"block is {block}, but must lie in [1, {len(rows)}], the number of rows")
    num_blocks = -(-length // block)
    starts = rng.integers(0, len(rows) - block + 1, size=num_blocks)
    return np.concatenate([rows[start : start + block] for start in starts])[:length]


def without_trend(values: NDArray[np.float64], window: int = 21) -> NDArray[np.float64]:
    """(R,) `values` less their centred running median, plus their overall median; NaN stays.

    Values that often are one and the same (half of the groups without spread, say) are kept as
    they are: their median jumps where nothing moves.
    """
    finite = values[np.isfinite(values)]
    if not finite.size or np.unique(finite, return_counts=True)[1].max() > 0.2 * finite.size:
        return values
    half = window // 2
    trend = np.array(
        [
            np.nanmedian(part) if np.isfinite(part).any() else np.nan
            for part in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
        ]
    )
    return np.asarray(values - trend + float(np.nanmedian(values)))
