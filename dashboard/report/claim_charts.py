"""A chart for each number that a verdict rests on: its curve, and the levels claimed of it.

Success in training and on fixed tasks share one chart; every other metric has its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.claims import Level
from echoscope.store.query.metric_keys import SUCCESS_RATE
from echoscope.text.amounts import step_words
from echoscope.text.sentences import capitalised

from ..charts import theme
from ..charts.curated import CHARTS, Chart, ChartLine, drawable_key, eval_keys, plain_chart
from ..charts.parts import Spec, Trace, scatter, whiskers
from ..charts.run_figures import RunCharts
from ..data.curves import Curve, describe
from .evidence_rows import EvidenceRow

MAX_CHARTS = 9
_TITLE_CHARS = 46
"""As many stand above the narrowest chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChart:
    """One chart, and what is claimed of its curves."""

    name: str
    spec: Spec
    sentences: tuple[str, ...]
    """A sentence for each claim."""
    alt: str


def claim_charts(page: RunCharts, rows: Sequence[EvidenceRow]) -> list[ClaimChart]:
    """The charts that prove the rows of a verdict, success first; of the run's metrics only.

    A level that did not change proves nothing by itself: it has a chart only beside the success.
    """
    solved = {SUCCESS_RATE, *eval_keys(page.keys)}
    of_success = [row for row in rows if row.metric in solved]
    charts = [_claimed(page, CHARTS[0], of_success)] if solved & set(page.keys) else []
    for row in rows:
        if row.metric in solved or not row.is_proof:
            continue
        chart = _chart(row.metric, page.keys)
        if chart is not None:
            charts.append(_claimed(page, chart, [row]))
    return [chart for chart in charts if chart is not None][:MAX_CHARTS]


def _chart(key: str, stored_keys: Sequence[str]) -> Chart | None:
    """The chart of one metric; None where the run does not store what it is made of."""
    stored = drawable_key(key, stored_keys)
    if stored is None:
        return None
    line = ChartLine(key=stored, has_interval=f"{stored}_low" in stored_keys)
    title = capitalised(metric(stored).in_sentence)
    if len(title) > _TITLE_CHARS:
        title = metric(stored).name
    return replace(plain_chart(stored), title=title, lines=(line,))


def _claimed(page: RunCharts, chart: Chart, rows: Sequence[EvidenceRow]) -> ClaimChart | None:
    curves = page.curves(chart)
    if not any(curve.has_values for curve in curves):
        return None
    spec = page.spec(chart, curves)
    for row in rows:
        curve = next((curve for curve in curves if curve.key == row.metric), curves[0])
        spec["data"] += [_level(level, curve) for level in row.levels if math.isfinite(level.value)]
    sentences = tuple(row.sentence for row in rows)
    alt = f"{chart.title}. {describe(curves)}"
    return ClaimChart(name=chart.name, spec=spec, sentences=sentences, alt=alt)


def _level(level: Level, curve: Curve) -> Trace:
    """A bar over the steps of a level at its height, with its interval; a diamond at one step."""
    first, last = level.steps
    y = np.full(3, level.value)
    low, high = (np.array([np.nan, end, np.nan]) for end in (level.low, level.high))
    ends = whiskers(y, low, high, color=theme.CLAIM, thickness=1.5, width=5)
    return scatter(
        x=np.array([first, (first + last) / 2, last]),
        y=y,
        mode="lines+markers",
        line={"color": theme.CLAIM, "width": 3},
        marker={
            "symbol": ["line-ns", "diamond-open", "line-ns"],
            "size": [0, 9, 0],
            "color": theme.CLAIM,
            "line": {"width": 2, "color": theme.CLAIM},
        },
        error_y=ends,
        hovertemplate=f"claimed, {step_words(level.steps)}: %{{y:.3~g}}<extra></extra>",
        showlegend=False,
        name=f"claimed of {curve.name}"[:80],
    )
