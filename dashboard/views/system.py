"""System: where the time of a step goes, who waits for whom, and how busy the machine is."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import streamlit as st

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.curated import ChartLine, plain_chart
from echoscope.dashboard.charts.system import phase_colors, shares_spec
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.curves import describe
from echoscope.dashboard.data.progress import (
    COLLECTION,
    MEANS,
    NUM_STEPS,
    PHASES,
    STEP,
    WAITS,
    Shares,
    engines_words,
    shares,
)
from echoscope.dashboard.escaping import escape
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import ui
from echoscope.dashboard.page.evaluation_box import evaluation_box
from echoscope.dashboard.words import number_words, plain
from echoscope.diagnostics.catalogue import LISTED, metric

PREFIXES = ("system/", "collection/", "ray/", "engine/")
_GPU = re.compile(r"system/gpu/(?P<number>[0-9]{1,4})/(?P<what>[a-z_]+)")
SPEED = ("time/tokens_per_s", "time/step_s")


def draw(run_id: str) -> None:
    if evaluation_box(run_id):
        return
    ui.part("system", run_id, ("keys", "position"), lambda: _shares(run_id))
    ui.part("gpus", run_id, ("keys", "position"), lambda: _gpus(run_id))
    ui.part("machine", run_id, ("keys",), lambda: _machine(run_id))


def _shares(run_id: str) -> None:
    """Of the last steps, as bars: the phases, then who waited during the collection."""
    since = queries.info(run_id).last_step - NUM_STEPS
    means = queries.table(run_id, MEANS, [(STEP, COLLECTION, *PHASES, *WAITS), since])
    parts, waiting = shares(means, STEP, PHASES), shares(means, COLLECTION, WAITS)
    if parts is None:
        ui.empty("No step of this run says how long it took, so there is nothing to divide.")
        return
    colors = phase_colors(parts)
    _heading(f"Phases of a step: {number_words(parts.total)} s", parts, colors)
    figures.show(shares_spec(parts, colors), _words("Phases of a step", parts), key="phases")
    if waiting is not None:
        _heading(f"Waiting, of {number_words(waiting.total)} s of collection", waiting, {})
        figures.show(shares_spec(waiting, {}), _words("Waiting", waiting), key="waits")
    engines_note = engines_words(queries.info(run_id).config)
    if engines_note:
        st.caption(plain(engines_note, 400))


def _heading(title: str, shares: Shares, colors: Mapping[str, str]) -> None:
    """Above a bar: what it is, over which steps, and the colours of its parts."""
    names = "".join(
        f'<span><span style="color:{color}">\u25a0</span> {escape(name)}</span>'
        for name, color in colors.items()
    )
    steps = f"mean of steps {shares.first_step} to {shares.last_step}"
    style = "display:flex;flex-wrap:wrap;align-items:baseline;gap:.1rem 1rem;font-size:.8rem"
    st.html(f'<div style="{style}"><b style="font-size:.9rem">{title}</b> {steps} {names}</div>')


def _words(title: str, shares: Shares) -> str:
    parts = ", ".join(
        f"{name} {number_words(seconds)} s" for name, seconds in shares.seconds.items()
    )
    return f"{title}, mean of steps {shares.first_step} to {shares.last_step}: {parts}"


def _gpus(run_id: str) -> None:
    """One chart for each thing that GPUs tell, with a line a GPU."""
    page = live_charts.snapshot(run_id)
    of: dict[str, list[ChartLine]] = {}
    for key in page.keys:
        match = _GPU.fullmatch(key)
        if match is not None:
            of.setdefault(match["what"], []).append(
                ChartLine(key=key, name=f"GPU {match['number']}")
            )
    if not of:
        return
    charts = [
        replace(
            plain_chart(lines[0].key),
            name=what,
            lines=tuple(sorted(lines, key=lambda line: int(line.name[4:]))),
        )
        for what, lines in of.items()
    ]
    grid = st.grid("auto", min_column_width=360)
    for chart in charts:
        with grid.cell():
            curves = page.curves(chart, charts)
            alt = f"{chart.title}. {describe(curves)}"
            figures.show(page.spec(chart, curves), alt, key=f"gpu_{chart.name}")


def _machine(run_id: str) -> None:
    keys = _keys(queries.metric_keys(run_id))
    if not any(key.startswith("system/") for key in keys):
        st.caption(
            "How busy the machine was is not measured in this run: Echoscope's own trainer "
            "measures it at each step."
        )
    page = live_charts.snapshot(run_id, is_followed=ui.is_following(run_id))
    live_charts.plain(page, keys)


def _keys(stored: Sequence[str]) -> list[str]:
    """Of the machine first, as the catalogue lists them, then speed, then waiting."""
    ranks = {key: rank for rank, key in enumerate(LISTED)}
    listed = [key for prefix in PREFIXES for key in stored if key.startswith(prefix)]
    machine = [k for k in listed if k.startswith(PREFIXES[0]) and not _GPU.fullmatch(k)]
    machine.sort(key=lambda key: ranks.get(metric(key).key, len(ranks)))
    others = [key for key in listed if not key.startswith(PREFIXES[0])]
    return [*machine, *(key for key in SPEED if key in stored), *others]


ui.run_frame("System", draw)
