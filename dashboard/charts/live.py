"""The charts of the Live page: its controls, the curated ones, and one for any other metric."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

import pandas as pd
import streamlit as st

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.reader import RunInfo
from echoscope.store.status import Origin, origin_of

from ..data import queries, tables
from ..data.cache import AnswerCache
from ..data.curves import AXES, Axis, AxisKind, Curve, Zoom, curve, describe, step_axis, to_csv
from ..escaping import visible
from ..live import cursor, figures, pulses
from ..page.problems import Problem
from . import charts
from .curated import (
    CHARTS,
    EVIDENCE,
    Chart,
    chart_curves,
    chart_keys,
    evidence_chart,
    shown_charts,
)
from .marks import Mark, run_marks

_MIN_WIDTH = 360
"""Of a chart, in pixels: three fit beside each other on a laptop, one on a telephone."""
_PLAIN = "metrics"
"""Names every chart outside of the curated ones where the controls speak of them."""

_drawings = AnswerCache(max_entries=256)
"""Shared by everyone who looks at the same charts in the same way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Controls:
    """How somebody wants to see the charts."""

    axis: AxisKind = "step"
    smooth: float = 0.0
    clip: bool = False
    logged: frozenset[str] = frozenset()
    """Names of the charts with a logarithmic scale."""
    zoom: Zoom | None = None
    """Of all charts together."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Snapshot:
    """What one drawing of the page shows, all of it as of one position."""

    run_id: str
    position: queries.Position
    info: RunInfo
    steps: pd.DataFrame
    known: Sequence[str]
    """The metrics that the run has."""
    is_followed: bool = False
    """Whether charts go on by themselves."""
    controls: Controls = field(default_factory=Controls)

    @property
    def max_points(self) -> int | None:
        return tables.most_points(self.info.last_step)

    @property
    def axis(self) -> Axis:
        return step_axis(self.steps, self.controls.axis)

    def options(self, name: str) -> charts.LineOptions:
        return charts.LineOptions(
            smooth=self.controls.smooth,
            clip=self.controls.clip,
            log_y=name in self.controls.logged,
            is_steady=name == EVIDENCE,
            zoom=self.controls.zoom,
            onset=self.onset,
        )

    @property
    def onset(self) -> tuple[int, int] | None:
        """When the change began that the verdict speaks of; None for a run without one."""
        found = queries.known_verdict(self.run_id)
        if found is None or found.onset_step is None:
            return None
        return found.onset_interval or (found.onset_step, found.onset_step)

    def charts(self) -> list[Chart]:
        """The curated charts, with the one that shows what the verdict rests on."""
        evidence = evidence_chart(queries.known_verdict(self.run_id), self.known)
        return [evidence if chart.name == EVIDENCE else chart for chart in CHARTS]

    @property
    def is_foreign(self) -> bool:
        """Another trainer made the run: what it does not log has no chart."""
        return origin_of(self.info.config) is not Origin.TRAINED

    def marks(self) -> list[Mark]:
        run_id = self.run_id
        return run_marks(queries.alarms(run_id), queries.commands(run_id), self.steps)


def snapshot(run_id: str, controls: Controls, *, is_followed: bool) -> Snapshot:
    """The run as it is now.

    Raises:
        Problem: no such run, or it cannot be read.
    """
    return Snapshot(
        run_id=run_id,
        position=queries.position(run_id),  # first: what is read later is at least as new
        info=queries.info(run_id),
        steps=queries.step_table(run_id),
        known=queries.metric_keys(run_id),
        controls=controls,
        is_followed=is_followed,
    )


def controls(run_id: str) -> Controls:
    """Draw the controls, which the URL keeps, and say what they and the mouse are set to."""
    with st.popover("Options", key="chart_options", width="stretch"):
        weight = st.slider(
            "Smoothing",
            0.0,
            0.99,
            0.0,
            0.01,
            key="smooth",
            bind="query-params",
            help="A moving average over the faint raw curve. Alarms never see it.",
        )
        chosen = st.segmented_control(
            "Axis",
            # The times of an imported run are those of the import.
            AXES[:1] if origin_of(queries.info(run_id).config) is Origin.IMPORTED else AXES,
            default="step",
            required=True,
            key="x",
            bind="query-params",
        )
        logged = st.multiselect(
            "Logarithmic scale",
            [*(chart.name for chart in CHARTS), _PLAIN],
            key="log",
            bind="query-params",
            placeholder="No chart",
            help="Which of the charts; 'metrics' means all those further down.",
        )
        clipped = st.toggle(
            "Clip outliers",
            key="clip",
            bind="query-params",
            help="The middle 96 % of the values set the range.",
        )
    return Controls(
        axis=chosen or "step",
        smooth=float(weight),
        clip=bool(clipped),
        logged=frozenset(logged),
        zoom=cursor.synchronise(f"{run_id}:{chosen}"),
    )


def curated(page: Snapshot) -> None:
    """The curated charts: three in a row where there is room.

    Of a run that another trainer made those that it has data for, and the others by name.
    """
    shown, absent = shown_charts(page.charts(), page.known, is_ours=not page.is_foreign)
    grid = st.grid("auto", min_column_width=_MIN_WIDTH)
    for chart in shown:
        with grid.cell():
            figures.show_sent(sent(page, chart.name), key=f"chart_{chart.name}")
    if absent:
        titles = ", ".join(chart.title for chart in absent)
        is_read = origin_of(page.info.config) is not Origin.RECORDED
        way = " A metrics file or log beside the rollouts may hold them." if is_read else ""
        st.caption(f"Not in the data of this run: {titles}.{way}")


def legend() -> None:
    """What else stands on the charts, and what the mouse does."""
    st.caption(
        "Dashed line: resumed from a checkpoint. Bands and whiskers: 95 % intervals. "
        "Drag to zoom, double-click to zoom out."
    )


def signs() -> None:
    """The signs that stand on charts, in a line above them."""
    st.html(
        '<div class="es-signs">On the charts: \u25c6 critical alarm, \u25b2 warning, '
        "\u25cf information, \u25a0 command, open sign: the alarm ended; "
        "shaded in red: when the problem began</div>"
    )


def export(page: Snapshot) -> None:
    """The numbers behind the curated charts."""
    with st.popover("CSV", on_change="rerun", key="csv", width="stretch") as box:
        if box.open:
            _downloads(page, chart_keys(CHARTS, page.known))


def plain(page: Snapshot, keys: Sequence[str]) -> None:
    """One chart for each metric, under its plain name."""
    grid = st.grid("auto", min_column_width=_MIN_WIDTH)
    for key in keys:
        name = f"{_PLAIN}_{key}"
        with grid.cell():
            figures.show_sent(sent(page, name, beside=keys), key=f"chart_{name}")


def sent(page: Snapshot, name: str, *, beside: Sequence[str] = ()) -> bytes:
    """A chart as the browser gets it.

    Args:
        name: Of a curated one, or "metrics_" and the key of a metric.
        beside: Keys of metrics that are asked for together with this one.

    Raises:
        Problem: there is no such chart, or the run cannot be read.
    """
    chart, curves = _found(page, name, beside)

    def build() -> tuple[figures.Drawing, str]:
        found = curves()
        return figures.drawing(_spec(page, chart, found)), describe(found)

    # The verdict may come after the step that it is about: then the chart is another one.
    wanted = (page.run_id, name, page.controls, chart.title, chart.lines, page.onset)
    drawn, words = _drawings.get(wanted, page.position, build)
    seen = page.controls
    return figures.sent(
        drawn,
        revision=f"{page.run_id} {seen.axis} {seen.clip} {chart.name in seen.logged}",
        name=file_name(page.run_id, name),
        alt=visible(f"{chart.title}. {words}", 600),
        source=_source(page, name) if page.is_followed else None,
    )


def figure_of(page: Snapshot, name: str, verdict: Verdict) -> Any:
    """One of the curated charts as a figure, with the evidence of a verdict of any step."""
    all_charts = {chart.name: chart for chart in CHARTS}
    chart = evidence_chart(verdict, page.known) if name == EVIDENCE else all_charts[name]
    return _spec(page, chart, _curves(page, chart, [chart]))


def _spec(page: Snapshot, chart: Chart, curves: Sequence[Curve]) -> dict[str, Any]:
    options = page.options(chart.name)
    return charts.line_spec(curves, page.axis, page.marks(), options, **chart.words)


def _found(
    page: Snapshot, name: str, beside: Sequence[str]
) -> tuple[Chart, Callable[[], list[Curve]]]:
    for chart in page.charts():
        if chart.name == name:
            return chart, partial(_curves, page, chart, page.charts())
    key = name.removeprefix(f"{_PLAIN}_")
    if key == name or key not in page.known:
        raise Problem(f"there is no chart {name[:80]!r}")
    words = metric(key)
    chart = Chart(
        name=_PLAIN,
        title=words.name,
        help=words.help,
        lines=(),
        missing="Every value is NaN: it could not be computed.",
    )
    return chart, partial(_plain_curve, page, key, beside or (key,))


def _curves(page: Snapshot, chart: Chart, beside: Sequence[Chart]) -> list[Curve]:
    """The curves of a chart; those of the charts beside it are asked for with them."""
    keys = chart_keys(beside, page.known)
    data = queries.series(page.run_id, keys, max_points=page.max_points)
    return chart_curves(chart, data, page.steps, page.known)


def _plain_curve(page: Snapshot, key: str, keys: Sequence[str]) -> list[Curve]:
    return [curve(queries.series(page.run_id, keys), key)]


def _source(page: Snapshot, name: str) -> figures.Source:
    return figures.Source(
        address=f"/api/runs/{quote(page.run_id, safe='')}/chart?{to_query(name, page.controls)}",
        pulse=pulses.address(page.run_id),
        position=pulses.mark(page.position),
    )


def to_query(name: str, controls: Controls) -> str:
    """A chart in an address."""
    words: dict[str, object] = {
        "name": name,
        "x": controls.axis,
        "smooth": controls.smooth,
        "clip": int(controls.clip),
        "log": ",".join(sorted(controls.logged)),
        "zoom": "" if controls.zoom is None else "{:.7g},{:.7g}".format(*controls.zoom),
    }
    return urlencode(words)


def from_query(query: Mapping[str, str]) -> tuple[str, Controls]:
    """What `to_query` wrote; what is none of it counts as not set."""
    axes: Mapping[str, AxisKind] = {kind: kind for kind in AXES}
    smooth = re.fullmatch(r"0(\.\d{1,20})?", query.get("smooth", ""))
    names = {*(chart.name for chart in CHARTS), _PLAIN}
    controls = Controls(
        axis=axes.get(query.get("x", ""), "step"),
        smooth=min(0.99, float(smooth[0])) if smooth else 0.0,
        clip=query.get("clip") == "1",
        logged=frozenset(query.get("log", "").split(",")) & names,
        zoom=cursor.read_zoom(query.get("zoom", "")),
    )
    return query.get("name", ""), controls


def _downloads(page: Snapshot, keys: Sequence[str]) -> None:
    data = queries.series(page.run_id, keys, max_points=None)
    for chart in CHARTS:
        st.download_button(
            chart.title,
            to_csv(chart_curves(chart, data, page.steps, page.known), page.axis),
            file_name=f"{file_name(page.run_id, chart.name)}.csv",
            mime="text/csv",
            key=f"csv_{chart.name}",
            on_click="ignore",
            width="stretch",
        )


def file_name(*parts: str) -> str:
    """A file name of nothing but letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", "_".join(parts))[:120].strip("._") or "chart"
