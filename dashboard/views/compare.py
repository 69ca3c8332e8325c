"""Compare: several runs on one axis, what differs in their settings, and who solved what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from echoscope.dashboard.charts import charts as lines
from echoscope.dashboard.charts import theme
from echoscope.dashboard.charts.diagnosis import regime_paths
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing import (
    config_diff,
    overlap,
    relative_change,
    solved_by,
    with_task,
)
from echoscope.dashboard.data.curves import AXES, Axis, AxisKind, Curve, curve, step_axis
from echoscope.dashboard.data.diagnosis import REGIME_KEYS, regime_path
from echoscope.dashboard.data.evaluating import task_settings
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.labels import change_words, value_words
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.words import NONE, plain, plain_config
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import ENTROPY, RESPONSE_LENGTH, RETURN, SUCCESS

MAX_RUNS = len(theme.SERIES) * len(theme.DASHES)
MAX_TASKS = 300
# Lengths of line and gap in pixels, as plotly draws each dash.
_STROKES = {"solid": (30, 0), "dash": (8, 4), "dot": (2, 3), "dashdot": (9, 3, 2, 3)}
CURATED = (
    SUCCESS,
    RETURN,
    "reward/group_std_mean",
    ENTROPY,
    "info/first_turn/dependence",
    "text/retrieval_accuracy",
    "optim/grad_norm",
    RESPONSE_LENGTH,
)
EVALUATED = """
SELECT t.tag, t.env_seed, t.task_key, md5(u.observation) AS first_observation, t.is_success, t.id
FROM trajectories t LEFT JOIN turns u
  ON u.trajectory_id = t.id AND u.attempt = t.attempt AND u.turn = 0 AND u.step = t.step
WHERE t.split = 'eval' AND t.step = (SELECT max(step) FROM trajectories WHERE split = 'eval')
"""


def draw() -> None:
    if not queries.runs():
        ui.empty_root()
        return
    runs = _pick_runs()
    if len(runs) < 2:
        ui.empty("Choose two runs or more above, or tick them on the page Runs.")
        return
    keys = sorted(set().union(*(queries.metric_keys(run) for run in runs)))
    left, middle, right = st.columns([3, 2, 2])
    shown = left.multiselect(
        "Metrics",
        keys,
        default=[key for key in CURATED if key in keys][:4],
        key="metrics",
        bind="query-params",
        format_func=lambda key: f"{metric(key).name}  ({key})",
        max_selections=12,
    )
    kind = middle.segmented_control(
        "Axis", AXES, default="step", required=True, key="x", bind="query-params"
    )
    smooth = right.slider("Smoothing", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params")
    baseline = st.segmented_control(
        "Baseline", runs, default=runs[0], required=True, key="baseline", format_func=plain
    )
    _legend(runs)
    _curves(runs, shown, kind or "step", float(smooth))
    _changes(runs, str(baseline), shown)
    left, right = st.columns(2, gap="medium")
    with left:
        _settings(runs)
    with right:
        _regimes(runs)
    _tasks(runs)


def _pick_runs() -> list[str]:
    """The runs that the address names and that exist."""
    rows = [row for row in queries.runs() if not row.problem]
    ids = [row.run_id for row in rows[: ui.MAX_PICKED]]
    asked = []
    for run in url_state.list_param("runs"):
        if ui.exists(run):
            asked.append(run)
        else:
            ui.notice(f"there is no run {run!r}; it is not shown")
    ids += [run for run in asked if run not in ids]

    def changed() -> None:
        st.query_params["runs"] = ",".join(st.session_state["compared"])

    chosen = st.multiselect(
        "Runs",
        ids,
        default=asked[:MAX_RUNS],
        key="compared",
        on_change=changed,
        max_selections=MAX_RUNS,
        format_func=lambda run: visible(run, 80),
    )
    return list(chosen)


def _legend(runs: list[str]) -> None:
    """One legend for all charts of the page."""
    entries = []
    for place, run in enumerate(runs):
        color, dash = theme.style_of(place)
        stops, end = [], 0
        for length, paint in zip(_STROKES[dash], (color, "transparent") * 2, strict=False):
            stops.append(f"{paint} {end}px {end + length}px")
            end += length
        line = (
            '<span style="display:inline-block;width:30px;height:3px;vertical-align:middle;'
            f'background:repeating-linear-gradient(90deg,{",".join(stops)})"></span>'
        )
        entries.append(f"<span>{line} {escape(run, 80)}</span>")
    st.html(
        '<div style="display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem">'
        + "".join(entries)
        + "</div>"
    )


def _curves(runs: list[str], keys: list[str], kind: AxisKind, smooth: float) -> None:
    columns = st.columns(2, gap="medium")
    tables = {run: queries.series(run, keys) for run in runs}
    axes = {run: step_axis(queries.step_table(run), kind) for run in runs}
    for place, key in enumerate(keys):
        drawn = []
        for at, run in enumerate(runs):
            color, dash = theme.style_of(at)
            one = replace(curve(tables[run], key, name=run, color=color), dash=dash)
            # Runs have axes of their own: on time or tokens they are placed before they are drawn.
            if kind != "step" and len(one.steps):
                one = _placed(one, axes[run])
            drawn.append(one)
        axis = axes[runs[0]]
        plain_axis = replace(axis, kind="step", positions=axis.steps.astype(np.float64))
        figure = lines.line_spec(
            drawn,
            plain_axis,
            options=lines.LineOptions(smooth=smooth, height=290, has_legend=False),
            title=metric(key).name,
            help=metric(key).help,
        )
        with columns[place % 2]:
            figures.show(figure, key, key=f"compare {key}", revision=f"{kind} {runs}")


def _placed(one: Curve, axis: Axis) -> Curve:
    """The curve with positions on its own run's axis in the place of steps."""
    positions: Any = axis.at(one.steps)
    return replace(one, steps=positions)


def _changes(runs: list[str], baseline: str, keys: list[str]) -> None:
    if not keys:
        return
    series = {run: queries.series(run, keys) for run in runs}
    table = relative_change(series, baseline, keys)
    shown = pd.DataFrame(
        {"metric, at the last common step": [f"{metric(k).name} ({k})" for k in table["key"]]}
    )
    for run in runs:
        shown[run] = [value_words(k, v) for k, v in zip(table["key"], table[run], strict=True)]
        if run != baseline:
            shown[f"{run} change"] = [change_words(ratio) for ratio in table[f"{run} change"]]
    st.dataframe(shown, hide_index=True)


def _settings(runs: list[str]) -> None:
    st.subheader("Settings that differ", anchor=False)
    table = config_diff({run: plain_config(queries.info(run)) for run in runs})
    if table.empty:
        st.caption("None: these runs have the same configuration.")
    else:
        st.dataframe(table, hide_index=True)


def _regimes(runs: list[str]) -> None:
    st.subheader("Regimes", anchor=False)
    found = {run: regime_path(queries.series(run, REGIME_KEYS, phase="train")) for run in runs}
    known = {run: path for run, path in found.items() if path is not None}
    if not known:
        ui.empty("None of these runs measured how reasonings depend on their prompts.")
        return
    styles = {run: theme.style_of(place) for place, run in enumerate(runs)}
    figures.show(
        regime_paths(known, styles),
        "Regime paths of the runs",
        key="regimes",
        revision=str(list(known)),
    )
    st.caption("The large dot is where a run is now.")


def _tasks(runs: list[str]) -> None:
    st.subheader("The same tasks", anchor=False)
    rows = {run: queries.table(run, EVALUATED) for run in runs}
    has_keys = all(table["task_key"].notna().all() for table in rows.values())
    solved = solved_by(
        {
            run: with_task(table, task_settings(queries.info(run).config), has_keys=has_keys)
            for run, table in rows.items()
        }
    )
    if solved.empty:
        ui.empty(
            "These runs were not evaluated on common tasks. Two runs share a task if the settings "
            "of the evaluation and the first state of the task are equal."
        )
        return
    left, right = st.columns([1, 2], gap="medium")
    with left:
        st.caption(f"{len(solved)} tasks in common, at each run's last evaluation")
        st.dataframe(overlap(solved, runs), hide_index=True, placeholder=NONE)
    with right:
        shown = solved.head(MAX_TASKS)
        table = shown[["tag", "env_seed", *runs]].astype({"env_seed": str})
        table[runs] = 100 * table[runs]
        links = {}
        for run in runs:
            name = f"{run} replay"
            table[name] = [_link(run, identity) for identity in shown[f"{run} id"]]
            links[name] = st.column_config.LinkColumn(name, display_text="open")
        st.dataframe(
            table.rename(columns={"tag": "tasks", "env_seed": "task"}),
            hide_index=True,
            height=320,
            placeholder=NONE,
            column_config={
                **{run: st.column_config.NumberColumn(format="%.0f %%") for run in runs},
                **links,
            },
        )
        if len(solved) > MAX_TASKS:
            st.caption(f"The {MAX_TASKS} in which the runs differ most.")


def _link(run: str, identity: object) -> str | None:
    if not isinstance(identity, str) or pd.isna(identity):
        return None
    return links.url("replay", run=run, trajectory=identity)


def main() -> None:
    ui.frame("Compare", draw)


main()
