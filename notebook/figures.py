"""The figures of the dashboard for one run, by name, as plotly objects that a notebook draws."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from echoscope.dashboard.charts import charts
from echoscope.dashboard.charts import diagnosis as drawn
from echoscope.dashboard.charts.alarm_timeline import timeline
from echoscope.dashboard.charts.curated import (
    CHARTS,
    EVIDENCE,
    Chart,
    chart_curves,
    chart_keys,
    evidence_chart,
)
from echoscope.dashboard.charts.marks import Mark, alarm_marks, command_marks, rewind_marks
from echoscope.dashboard.data import diagnosis as data
from echoscope.dashboard.data import tables
from echoscope.dashboard.data.alarm_history import AlarmHistory, histories
from echoscope.dashboard.data.curves import AxisKind, Curve, curve, step_axis
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.errors import QueryError
from echoscope.store.reader import RunReader
from echoscope.text.did_you_mean import did_you_mean

_INK = "#7d7d7d"
"""Of texts: as readable on white as on a dark page."""
_GRID = "rgba(128,128,128,0.22)"
_AXIS = {"gridcolor": _GRID, "zerolinecolor": _GRID, "linecolor": _GRID, "automargin": True}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"color": _INK},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "xaxis": _AXIS,
        "yaxis": _AXIS,
        "colorscale": {"sequential": "Cividis"},
    }
)
"""For light and dark notebooks alike; `figure.update_layout(template="plotly_dark")` changes it."""


@dataclass(slots=True)
class Figures:
    """The figures of one run, from its state at the time of asking."""

    run: RunReader
    verdict: Callable[[], Verdict | None]
    """What is known of the run; None where working it out would take long."""
    axis: AxisKind = "step"
    smooth: float = 0.0
    log_y: bool = False
    _steps: pd.DataFrame = field(init=False)
    _known: list[str] = field(init=False)
    _last_step: int = field(init=False)

    def __post_init__(self) -> None:
        self._steps = self.run.steps().to_pandas()
        self._known = self.run.metric_keys()
        self._last_step = self.run.info().last_step

    def names(self) -> list[str]:
        """Figures that the run has data for: curves first, then those of the diagnosis."""
        by_name = self._charts()
        proof = by_name.pop(EVIDENCE)
        listed = [*([proof] if proof.shows_level else []), *by_name.values()]
        series = self._series(chart_keys(listed, self._known))
        with_data = [c.name for c in listed if _has_values(self._chart_curves(c, series))]
        others = [name for name, (load, _) in self._others().items() if load() is not None]
        return with_data + others

    def figure(self, name: str) -> go.Figure:
        """One figure by its name, or the curve of a metric by its key.

        Raises:
            QueryError: there is no such figure or metric, or the run has no data for it.
        """
        chart = self._charts().get(name)
        if chart is not None:
            keys = chart_keys([chart], self._known)
            return self._line_chart(chart, self._chart_curves(chart, self._series(keys)))
        others = self._others()
        if name in others:
            load, draw = others[name]
            loaded = load()
            if loaded is None:
                raise QueryError(f"the run has no data for the figure {name!r}; see plots()")
            return _themed(draw(loaded))
        if name in self._known:
            words = metric(name)
            chart = Chart(
                name=name,
                title=words.name,
                help=words.help,
                lines=(),
                missing="Every value is NaN: it could not be computed.",
            )
            return self._line_chart(chart, [curve(self._series([name]), name)])
        names = [*self._charts(), *others, *self._known]
        hint = did_you_mean(name, names)
        raise QueryError(
            f"there is no figure or metric {name[:80]!r}{hint or '; plots() lists the figures'}"
        )

    def _charts(self) -> dict[str, Chart]:
        return {
            chart.name: evidence_chart(self.verdict(), self._known)
            if chart.name == EVIDENCE
            else chart
            for chart in CHARTS
        }

    def _series(self, keys: list[str]) -> pd.DataFrame:
        return tables.series(self.run, keys, max_points=tables.most_points(self._last_step))

    def _chart_curves(self, chart: Chart, series: pd.DataFrame) -> list[Curve]:
        return chart_curves(chart, series, self._steps, self._known)

    def _line_chart(self, chart: Chart, curves: list[Curve]) -> go.Figure:
        verdict = self.verdict()
        onset = None
        if verdict is not None and verdict.onset_step is not None:
            onset = verdict.onset_interval or (verdict.onset_step, verdict.onset_step)
        figure = charts.line_chart(
            curves,
            step_axis(self._steps, self.axis),
            self._marks(),
            charts.LineOptions(smooth=self.smooth, log_y=self.log_y, height=320, onset=onset),
            **chart.words,
        )
        return _themed(figure)

    def _marks(self) -> list[Mark]:
        return [
            *alarm_marks(self.run.alarms()),
            *command_marks(self.run.commands()),
            *rewind_marks(self._steps),
        ]

    def _others(self) -> Mapping[str, tuple[Callable[[], Any], Callable[[Any], go.Figure]]]:
        """Figures of the page Diagnosis, and the alarms: what reads the data, and what draws it."""
        return {
            "regimes": (self._regimes, drawn.regime_plane),
            "information_curve": (self._curves, lambda parts: drawn.information_curve(*parts)),
            "posterior": (self._posterior, drawn.posterior_matrix),
            "group_map": (self._groups, drawn.group_map),
            "gradients": (self._gradients, drawn.gradient_bars),
            "alarms": (self._alarms, lambda alarms: timeline(alarms, self._last_step)),
        }

    def _regimes(self) -> data.RegimePath | None:
        keys = [key for key in data.REGIME_KEYS if key in self._known]
        return data.regime_path(tables.series(self.run, keys, "train")) if keys else None

    def _families(self) -> tuple[int, list[data.FamilyInformation]]:
        """The newest step with cross-scores, and what was measured there."""
        steps = tables.diagnostic_steps(self.run, "information")
        if not steps:
            return -1, []
        records = [r for r in self.run.diagnostics(steps[-1]) if r.kind == "information"]
        return steps[-1], list(data.families_of(records[-1]).values()) if records else []

    def _curves(self) -> tuple[Any, ...] | None:
        """Families, the ceiling ln N of each, and where its prompt is identified."""
        step, families = self._families()
        curved = [family for family in families if len(family.curve)]
        if not curved:
            return None
        values = self._values_at(step, "info/")
        names = [family.family for family in curved]
        prompts = {name: values.get(f"info/{name}/num_prompts", math.nan) for name in names}
        ceilings = {name: math.log(n) if n > 1 else math.nan for name, n in prompts.items()}
        lengths = {
            name: values.get(f"info/{name}/identification_length", math.nan) for name in names
        }
        return curved, ceilings, lengths

    def _posterior(self) -> Any:
        _, families = self._families()
        stored = [f.posterior_NN for f in families if f.posterior_NN is not None]
        return stored[0] if stored else None

    def _groups(self) -> pd.DataFrame | None:
        steps = data.thin(tables.trajectory_steps(self.run), data.MAX_GROUP_STEPS)
        grid = data.group_grid(tables.groups(self.run, steps))
        return None if grid.empty else grid

    def _gradients(self) -> pd.DataFrame | None:
        steps = tables.diagnostic_steps(self.run, "gradients")
        table = data.gradient_table(self._values_at(steps[-1], "gradient/")) if steps else None
        return None if table is None or table.empty else table

    def _alarms(self) -> list[AlarmHistory] | None:
        return histories(self.run.alarms(), self.run.commands()) or None

    def _values_at(self, step: int, prefix: str) -> dict[str, float]:
        rows = self.run.sql(
            "SELECT key, value FROM metrics "
            "WHERE step = $1 AND phase = 'train' AND starts_with(key, $2)",
            [step, prefix],
        )
        keys, values = rows.column("key").to_pylist(), rows.column("value").to_pylist()
        return {str(k): math.nan if v is None else v for k, v in zip(keys, values, strict=True)}


def _has_values(curves: list[Curve]) -> bool:
    return any(not math.isnan(value) for curve in curves for value in curve.values.tolist())


def _themed(figure: go.Figure) -> go.Figure:
    figure.update_layout(template=TEMPLATE)
    return figure
