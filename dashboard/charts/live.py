"""The charts of the Live page: its controls, the curated ones, and one for any other metric."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

import streamlit as st

from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.status import Origin, origin_of

from ..data import queries
from ..data.curves import AXES, AxisKind, describe
from ..escaping import visible
from ..live import cursor, figures, pulses
from ..page.problems import Problem
from .curated import Chart, onset_range, plain_chart
from .run_figures import Controls, RunCharts

_MIN_WIDTH = 360
"""Of a chart, in pixels: three fit beside each other on a laptop, one on a telephone."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Snapshot(RunCharts):
    """What one drawing of the page shows, all of it as of one position."""

    run_id: str
    position: queries.Position
    is_followed: bool = False
    """Whether charts go on by themselves."""


def snapshot(
    run_id: str,
    controls: Controls | None = None,
    *,
    is_followed: bool = False,
    verdict: Verdict | None = None,
) -> Snapshot:
    """The run as it is now.

    Args:
        verdict: What the charts prove; None for the newest that there is.

    Raises:
        Problem: no such run, or it cannot be read.
    """
    return Snapshot(
        run_id=run_id,
        position=queries.position(run_id),  # first: what is read later is at least as new
        last_step=queries.info(run_id).last_step,
        steps=queries.step_table(run_id),
        keys=queries.metric_keys(run_id),
        verdict=verdict or queries.known_verdict(run_id),
        controls=controls or Controls(),
        is_followed=is_followed,
        series=functools.partial(queries.series, run_id),
        happened=lambda: (queries.alarms(run_id), queries.commands(run_id)),
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
        log_y = st.toggle("Logarithmic scale", key="log", bind="query-params")
    return Controls(
        axis=chosen or "step",
        smooth=float(weight),
        log_y=bool(log_y),
        zoom=cursor.synchronise(f"{run_id}:{chosen}"),
    )


def curated(page: Snapshot) -> None:
    """The curated charts: three in a row where there is room."""
    page_charts = page.charts()
    if not page_charts:
        st.caption("Charts appear here with the first step that logs metrics.")
    plain(page, [chart.name for chart in page_charts])


def legend() -> None:
    """What stands on the charts, and what the mouse does."""
    st.caption(
        "On the charts: \u25c6 critical alarm, \u25b2 warning, \u25cf information, "
        "\u25a0 command; an open sign: the alarm ended. Red stretch: when the problem began. "
        "Dashed line: resumed from a checkpoint. Bands and whiskers: 95 % intervals; of a long "
        "run, the lowest and highest step around each point. Arrow: a value outside of the chart. "
        "Drag to zoom, double-click to see everything."
    )


def plain(page: Snapshot, names: Sequence[str]) -> None:
    """One chart for each metric, under its plain name; or for each name of a curated one."""
    grid = st.grid("auto", min_column_width=_MIN_WIDTH)
    for name in names:
        with grid.cell():
            figures.show_sent(sent(page, name, beside=names), key=f"chart_{name}")


def sent(page: Snapshot, name: str, *, beside: Sequence[str] = ()) -> bytes:
    """A chart as the browser gets it.

    Args:
        name: Of a curated one, or the key of a metric.
        beside: Keys of metrics that are asked for together with this one.

    Raises:
        Problem: there is no such chart, or the run cannot be read.
    """
    chart, others = _chart(page, name, beside)

    def build() -> bytes:
        curves, seen = page.curves(chart, others), page.controls
        source = {
            "address": f"{pulses.address(page.run_id, 'chart')}?{to_query(name, seen)}",
            "pulse": pulses.address(page.run_id),
            "position": pulses.mark(page.position),
        }
        return figures.sent(
            page.spec(chart, curves),
            revision=f"{page.run_id} {seen.axis} {seen.log_y}",
            name=f"{page.run_id}_{name}",
            alt=visible(f"{chart.title}. {describe(curves)}", 600),
            source=source if page.is_followed else None,
        )

    # The verdict may come after the step that it is about: then the chart is another one.
    proven = chart.lines, onset_range(page.verdict)
    request = ("chart", page.run_id, name, page.controls, page.is_followed, *proven)
    data: bytes = queries.answers.get(request, page.position, build)
    return data


def _chart(page: Snapshot, name: str, beside: Sequence[str]) -> tuple[Chart, list[Chart]]:
    """A chart by its name, and the charts whose metrics are asked for together with its own."""
    curated, chart = page.charts(), page.chart(name)
    if chart is None or (name not in page.keys and chart not in curated):
        raise Problem(f"there is no chart {name[:80]!r}")
    if chart in curated:
        return chart, curated
    return chart, [plain_chart(key) for key in beside or (name,)]


def to_query(name: str, controls: Controls) -> str:
    """A chart in an address."""
    state: dict[str, object] = {
        "name": name,
        "x": controls.axis,
        "smooth": controls.smooth,
        "log": int(controls.log_y),
        "zoom": "" if controls.zoom is None else "{:.7g},{:.7g}".format(*controls.zoom),
    }
    return urlencode(state)


def from_query(query: Mapping[str, str]) -> tuple[str, Controls]:
    """What `to_query` wrote; what is none of it counts as not set."""
    axes: Mapping[str, AxisKind] = {kind: kind for kind in AXES}
    smooth = re.fullmatch(r"0(\.\d{1,20})?", query.get("smooth", ""))
    controls = Controls(
        axis=axes.get(query.get("x", ""), "step"),
        smooth=min(0.99, float(smooth[0])) if smooth else 0.0,
        log_y=query.get("log") == "1",
        zoom=cursor.read_zoom(query.get("zoom", "")),
    )
    return query.get("name", ""), controls
