"""The figures of one run, by name: the page Diagnosis, the report and a notebook draw these."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.measure.text.sample import evenly
from echoscope.store.errors import QueryError
from echoscope.store.reader import CommandState, RunReader
from echoscope.store.records import Alarm
from echoscope.text.did_you_mean import did_you_mean

from ..data import diagnosis as data
from ..data import tables
from ..data.curves import Axis, AxisKind, Curve, step_axis
from . import diagnosis as drawn
from .charts import LineOptions, line_spec
from .curated import (
    BY_NAME,
    EVIDENCE,
    Chart,
    chart_curves,
    chart_keys,
    charts_of,
    evidence_chart,
    onset_range,
    plain_chart,
)
from .marks import run_marks
from .parts import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that is no curve over the steps."""

    title: str
    help: str
    """What it shows, in a sentence or two."""
    draw: Callable[[RunReader, int | None], Spec | None]
    """The figure at a step, None for the newest that was measured; None where there is no data."""


def _values(run: RunReader, step: int, prefix: str) -> dict[str, float]:
    """The training metrics of one step whose keys begin so."""
    rows = run.sql(
        "SELECT key, value FROM metrics "
        "WHERE step = $1 AND phase = 'train' AND starts_with(key, $2)",
        [step, prefix],
    ).to_pylist()
    return {r["key"]: math.nan if r["value"] is None else r["value"] for r in rows}


def _regimes(run: RunReader, step: int | None) -> Spec | None:
    path = data.regime_path(tables.series(run, data.REGIME_KEYS, "train"))
    return None if path is None else drawn.regime_plane(*path, selected=step)


def _information(run: RunReader, step: int | None) -> Spec | None:
    record = tables.diagnostic_near(run, "information", step)
    curves = {} if record is None else data.information_curves(record)
    if record is None or not curves:
        return None
    return drawn.information_figure(curves, _values(run, record.step, "info/"))


def _groups(run: RunReader, step: int | None) -> Spec | None:
    steps = evenly(tables.trajectory_steps(run), data.MAX_GROUP_STEPS)
    grid = data.group_grid(run, steps)
    return None if grid.empty else drawn.group_map(grid)


def _gradients(run: RunReader, step: int | None) -> Spec | None:
    record = tables.diagnostic_near(run, "gradients", step)
    values = {} if record is None else _values(run, record.step, "gradient/")
    table = data.gradient_table(values)
    return None if table.empty else drawn.gradient_bars(table)


FIGURES: Mapping[str, Figure] = {
    "regimes": Figure(
        title="Regime of the reasoning",
        help="To the right the reasoning varies for one prompt; upwards it depends on the prompt. "
        "Ring: the step that is shown, with its 95 % interval.",
        draw=_regimes,
    ),
    "information_curve": Figure(
        title="Where the reasoning starts to depend on the prompt",
        help="Information about the prompt in the first k tokens, in nats. Dotted: the most that "
        "these prompts allow. Diamond: enough to identify the prompt.",
        draw=_information,
    ),
    "group_map": Figure(
        title="Groups and their rewards",
        help="One cell is one group of siblings. Only mixed groups give a gradient. Darker: more "
        "reward spread.",
        draw=_groups,
    ),
    "gradients": Figure(
        title="Where the gradient comes from",
        help="Norm of each term's gradient, by the reward spread of the groups. A norm alone grows "
        "with noise: hover for the share of signal.",
        draw=_gradients,
    ),
}
"""By name, as addresses and `Run.plot` have it."""


def draw_figure(run: RunReader, name: str, step: int | None) -> Spec | None:
    """One of FIGURES at a step."""
    return FIGURES[name].draw(run, step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls(LineOptions):
    """How somebody wants to see the charts, all of them together."""

    axis: AxisKind = "step"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunCharts:
    """The charts of a run as it stands, whoever is asked for its tables: `queries`, or a reader."""

    last_step: int
    steps: pd.DataFrame
    keys: Sequence[str]
    """The metrics that the run has."""
    verdict: Verdict | None
    """None where the run is not judged: then the chart of the evidence has nothing to show."""
    controls: Controls = field(default_factory=Controls)
    series: Callable[..., pd.DataFrame]
    """The points of some keys, `max_points` of each."""
    happened: Callable[[], tuple[Iterable[Alarm], Iterable[CommandState]]]

    @property
    def axis(self) -> Axis:
        return step_axis(self.steps, self.controls.axis)

    def charts(self) -> list[Chart]:
        """The curated charts that the run has metrics for."""
        return charts_of(self.verdict, self.keys)

    def chart(self, name: str) -> Chart | None:
        """A curated chart by its name, or that of a metric by its key."""
        if name == EVIDENCE and (proof := evidence_chart(self.verdict, self.keys)) is not None:
            return proof
        return BY_NAME.get(name) or (plain_chart(name) if name in self.keys else None)

    def curves(self, chart: Chart, beside: Sequence[Chart] = ()) -> list[Curve]:
        """The curves of a chart; the metrics of those beside it are asked for together with it."""
        keys = chart_keys(beside or [chart], self.keys)
        most = None if self.last_step <= tables.EXACT_STEPS else tables.MAX_POINTS
        return chart_curves(chart, self.series(keys, max_points=most), self.steps, self.keys)

    def spec(self, chart: Chart, curves: Sequence[Curve]) -> Spec:
        options = replace(self.controls, onset=onset_range(self.verdict))
        marks = run_marks(*self.happened(), self.steps)
        return line_spec(curves, self.axis, marks, options, title=chart.title, help=chart.help)


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFigures(RunCharts):
    """All figures of a stored run: its curves, and FIGURES."""

    run: RunReader

    def charts(self) -> list[Chart]:
        """The curated charts that the run has data for; what the verdict rests on comes first."""
        charts = sorted(super().charts(), key=lambda chart: chart.name != EVIDENCE)
        return [chart for chart in charts if any(drawn.has_values for drawn in self.curves(chart))]

    def names(self) -> list[str]:
        """Figures that the run has data for."""
        others = [name for name, f in FIGURES.items() if f.draw(self.run, None) is not None]
        return [chart.name for chart in self.charts()] + others

    def figure(self, name: str) -> go.Figure:
        """One figure by its name, or the curve of a metric by its key.

        Raises:
            QueryError: there is no such figure or metric, or the run has no data for it.
        """
        if name in FIGURES:
            spec = draw_figure(self.run, name, None)
            if spec is None:
                raise QueryError(f"the run has no data for the figure {name!r}; see plots()")
            return go.Figure(spec)
        chart = self.chart(name)
        if chart is not None:
            return go.Figure(self.spec(chart, self.curves(chart)))
        hint = did_you_mean(name, [*BY_NAME, *FIGURES, *self.keys])
        raise QueryError(
            f"there is no figure or metric {name[:80]!r}{hint or '; plots() lists the figures'}"
        )


def figures_of(run: RunReader, verdict: Verdict | None, **look: Any) -> RunFigures:
    """The figures of a run as it stands; `look` has the fields of `Controls`."""
    return RunFigures(
        run=run,
        last_step=run.info().last_step,
        steps=run.steps().to_pandas(),
        keys=run.metric_keys(),
        verdict=verdict,
        controls=Controls(height=320, **look),
        series=functools.partial(tables.series, run),
        happened=lambda: (run.alarms(), run.commands()),
    )
