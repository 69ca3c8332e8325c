"""Evaluations: a leaderboard over runs, success over steps, and what carries over."""

from __future__ import annotations

import numpy as np
import pandas as pd
import streamlit as st

from echoscope.dashboard.charts import theme
from echoscope.dashboard.charts.charts import LineOptions, line_spec
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.curves import Curve, step_axis
from echoscope.dashboard.data.evaluating import (
    Evaluated,
    carries_over,
    evaluations_of,
    leaderboard,
    on_their_tasks,
)
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.words import NONE, plain
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.store.status import Origin

MAX_RUNS = 40
"""Runs that are read for the leaderboard, the newest that match."""
PICKS = {"last": "last", "best": "best", "first": "before training"}
SQL = "SELECT step, key, value FROM metrics WHERE starts_with(key, 'eval/') ORDER BY step"


def draw() -> None:
    rows = [row for row in queries.runs(url_state.text_param("filter")) if not row.problem]
    if not rows:
        ui.empty_root()
        return
    left, right = st.columns([3, 2])
    left.text_input(
        "Runs", key="filter", bind="query-params", placeholder="regular expression on name and tags"
    )
    pick = right.segmented_control(
        "Evaluation",
        list(PICKS),
        default="last",
        required=True,
        format_func=PICKS.__getitem__,
        key="pick",
        bind="query-params",
    )
    found: list[Evaluated] = []
    unread = []
    for row in rows[:MAX_RUNS]:
        try:
            found += evaluations_of(row.run_id, queries.table(row.run_id, SQL))
        except Problem as problem:
            unread.append(f"{row.run_id}: {problem.text}")
    if len(rows) > MAX_RUNS:
        st.caption(f"The newest {MAX_RUNS} of {len(rows)} runs. Narrow the search for others.")
    if not found:
        if rows and all(row.origin is not Origin.TRAINED for row in rows):
            ui.empty(
                "The data of these runs hold no evaluation. Another trainer's evaluations are "
                "recognised by the name of their folder or file (val, eval, test) beside its "
                "training rollouts."
            )
            return
        ui.empty(
            "None of these runs was evaluated. eval.every sets when one is; a live one can be now:",
            "echoscope ctl RUN evaluate",
        )
        return
    configs = {run: queries.info(run).config for run in dict.fromkeys(e.run_id for e in found)}
    found = on_their_tasks(found, configs)
    _board(leaderboard(found, str(pick)))
    foreign = {row.run_id for row in rows if row.origin is not Origin.TRAINED}
    if foreign & {one.run_id for one in found}:
        st.caption(
            "Other trainers do not say which tasks an evaluation draws: rows of the same name "
            "compare only if you know that their tasks are the same."
        )
    _over_steps(found)
    for text in unread:
        ui.notice(text)


def _board(board: list[Evaluated]) -> None:
    st.subheader("Leaderboard", anchor=False)
    ks = sorted({k for one in board for k in one.passes if k > 1})
    table = pd.DataFrame(
        [
            {
                "tasks": one.tasks,
                "run": one.run_id,
                "step": one.step,
                "success": 100 * one.success,
                "95 % interval": f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
                if one.low == one.low
                else NONE,
                **{f"pass@{k}": 100 * one.passes.get(k, np.nan) for k in ks},
                "number of tasks": one.num_tasks,
                "trajectories": links.url(
                    "replay", run=one.run_id, step=one.step, split="eval", tag=one.tag
                ),
            }
            for one in board
        ]
    )
    st.dataframe(
        table,
        hide_index=True,
        placeholder=NONE,
        column_config={
            "success": st.column_config.ProgressColumn(
                format="%.0f %%", min_value=0.0, max_value=100.0
            ),
            **{f"pass@{k}": st.column_config.NumberColumn(format="%.0f %%") for k in ks},
            "trajectories": st.column_config.LinkColumn(display_text="open"),
            "number of tasks": st.column_config.NumberColumn(format="%d"),
        },
    )


def _over_steps(found: list[Evaluated]) -> None:
    """Success over steps of the runs that share one set of tasks, with intervals."""
    sets = sorted({one.tasks for one in found})
    tasks = st.segmented_control(
        "Tasks",
        sets,
        default=sets[0],
        required=True,
        key="tasks",
        bind="query-params",
        format_func=plain,
    )
    by_run: dict[str, list[Evaluated]] = {}
    for one in found:
        if one.tasks == tasks:
            by_run.setdefault(one.run_id, []).append(one)
    curves = []
    for place, (run_id, some) in enumerate(by_run.items()):
        color, dash = theme.style_of(place)
        curves.append(
            Curve(
                key=f"eval/{some[0].tag}/success_rate",
                name=run_id,
                unit=SHARE,
                steps=np.array([one.step for one in some], dtype=np.int64),
                values=np.array([one.success for one in some]),
                low=np.array([one.low for one in some]),
                high=np.array([one.high for one in some]),
                color=color,
                dash=dash,
            )
        )
    left, right = st.columns([3, 2], gap="medium")
    with left:
        axis = step_axis(queries.step_table(next(iter(by_run))))
        figures.show(
            line_spec(curves, axis, options=LineOptions(height=320), title="Success, evaluated"),
            "Success over steps",
            key="success",
            revision=str(tasks),
        )
    with right:
        _carried(found)


def _carried(found: list[Evaluated]) -> None:
    st.subheader("Generalisation", anchor=False)
    parts = []
    for run_id in dict.fromkeys(one.run_id for one in found):
        some = [one for one in found if one.run_id == run_id]
        if len({one.tag for one in some}) > 1:
            parts.append(carries_over(some, _trained(run_id)).assign(run=run_id))
    parts = [part for part in parts if not part.empty]
    if not parts:
        st.caption(
            "No run was evaluated on other tasks than it trains on. The recipe bandit is: some of "
            "its names are new in evaluation."
        )
        return
    table = pd.concat(parts, ignore_index=True).rename(
        columns={"success_trained": "there", "success_other": "elsewhere"}
    )
    shares = ["there", "elsewhere", "gap"]
    table[shares] = 100 * table[shares]
    percent = st.column_config.NumberColumn(format="%.0f %%")
    st.dataframe(
        table,
        hide_index=True,
        placeholder=NONE,
        column_order=["run", "trained", "there", "other", "elsewhere", "gap", "step"],
        column_config=dict.fromkeys(shares, percent),
    )


def _trained(run_id: str) -> list[str]:
    """Tags of the run's training environments, as its configuration has them."""
    envs = queries.info(run_id).config.get("envs")
    train = envs.get("train") if isinstance(envs, dict) else None
    entries = [one for one in train if isinstance(one, dict)] if isinstance(train, list) else []
    return [str(one.get("tag") or one.get("env")) for one in entries]


def main() -> None:
    ui.frame("Evaluations", draw)


main()
