"""Compare: several runs on one axis, what differs in their settings, and who solved what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import streamlit as st

from echoscope.dashboard.charts import charts as lines
from echoscope.dashboard.charts import theme
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing import (
    config_diff,
    last_evaluations,
    other_tasks,
    solved_by,
    task_settings,
    with_task,
)
from echoscope.dashboard.data.curves import AXES, AxisKind, curve, step_axis
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.words import NONE, flat
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import ENTROPY, RETURN, SUCCESS

MAX_RUNS = len(theme.SERIES)
MAX_TASKS = 300
CURATED = (SUCCESS, RETURN, ENTROPY, "info/first_turn/dependence", "text/retrieval_accuracy")
EVALUATIONS = "SELECT step, key, value FROM metrics WHERE starts_with(key, 'eval/') ORDER BY step"
TASKS = """
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
    chosen = left.multiselect(
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
    _legend(runs)
    _curves(runs, chosen, kind or "step", float(smooth))
    left, right = st.columns(2, gap="medium")
    with left:
        _evaluations(runs)
    with right:
        _settings(runs)
    _tasks(runs)


def _pick_runs() -> list[str]:
    """The runs that the address names and that exist."""
    rows = [row for row in queries.runs() if not row.problem]
    ids = [row.run_id for row in rows[: ui.MAX_PICKED]]
    asked = []
    for run in url_state.list_param("runs", most=MAX_RUNS):
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
        default=asked,
        key="compared",
        on_change=changed,
        max_selections=MAX_RUNS,
        format_func=lambda run: visible(run, 80),
    )
    return list(chosen)


def _legend(runs: list[str]) -> None:
    """One legend for all charts of the page."""
    entries = [
        '<span><span style="display:inline-block;width:30px;height:3px;vertical-align:middle;'
        f'background:{color}"></span> {escape(run, 80)}</span>'
        for run, color in zip(runs, theme.SERIES, strict=False)
    ]
    style = "display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;font-size:.85rem"
    st.html(f'<div style="{style}">{"".join(entries)}</div>')


def _curves(runs: list[str], keys: list[str], kind: AxisKind, smooth: float) -> None:
    columns = st.columns(2, gap="medium")
    tables = {run: queries.series(run, keys) for run in runs}
    axes = {run: step_axis(queries.step_table(run), kind) for run in runs}
    # Runs have axes of their own: curves are placed on them before they are drawn on one.
    first = axes[runs[0]]
    common = replace(first, kind="step", positions=first.steps.astype(np.float64))
    for index, key in enumerate(keys):
        drawn = []
        for run, color in zip(runs, theme.SERIES, strict=False):
            run_curve = curve(tables[run], key, name=run, color=color)
            positions: Any = axes[run].at(run_curve.steps)
            drawn.append(run_curve if kind == "step" else replace(run_curve, steps=positions))
        figure = lines.line_spec(
            drawn,
            common,
            options=lines.LineOptions(smooth=smooth, height=290, has_legend=False),
            title=metric(key).name,
            help=metric(key).help,
        )
        with columns[index % 2]:
            figures.show(figure, key, key=f"compare {key}", revision=f"{kind} {runs}")


def _evaluations(runs: list[str]) -> None:
    st.subheader("Evaluations", anchor=False)
    table = last_evaluations({run: queries.table(run, EVALUATIONS) for run in runs})
    if table.empty:
        st.caption("None of these runs was evaluated on fixed tasks.")
        return
    st.dataframe(table, hide_index=True, placeholder=NONE)
    differing = other_tasks([queries.info(run).config for run in runs])
    if differing:
        st.caption(
            f"Not comparable, because these runs draw other tasks: {visible(', '.join(differing))}"
        )


def _settings(runs: list[str]) -> None:
    st.subheader("Settings that differ", anchor=False)
    table = config_diff({run: flat(queries.info(run).config) for run in runs})
    if table.empty:
        st.caption("None: these runs have the same configuration.")
    else:
        st.dataframe(table, hide_index=True)


def _tasks(runs: list[str]) -> None:
    st.subheader("The same tasks", anchor=False)
    rows = {run: queries.table(run, TASKS) for run in runs}
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
    task_rows = solved.head(MAX_TASKS)
    table = task_rows[["tag", "env_seed", *runs]].astype({"env_seed": str})
    table[runs] = 100 * table[runs]
    columns: dict[str, Any] = {run: st.column_config.NumberColumn(format="%.0f %%") for run in runs}
    for run in runs:
        name = f"{run} replay"
        table[name] = [_link(run, identity) for identity in task_rows[f"{run} id"]]
        columns[name] = st.column_config.LinkColumn(name, display_text="open")
    st.dataframe(
        table.rename(columns={"tag": "tasks", "env_seed": "task"}),
        hide_index=True,
        height=320,
        placeholder=NONE,
        column_config=columns,
    )
    st.caption(
        f"{len(solved)} tasks in common, at each run's last evaluation; those in which the runs "
        "differ most come first."
    )


def _link(run: str, identity: object) -> str | None:
    if not isinstance(identity, str):
        return None
    return links.url("replay", run=run, trajectory=identity)


ui.frame("Compare", draw)
