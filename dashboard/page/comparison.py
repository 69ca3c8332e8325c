"""Compare, below the curves: which settings matter, which differ, and who solved which task."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.diagnostics.catalogue import metric
from echoscope.store.reader import RunReader
from echoscope.text.amounts import counted

from ..charts import compare as drawn
from ..charts import theme
from ..data import queries
from ..data.comparing.groups import (
    MISSING,
    RunGroup,
    Settings,
    differing,
    equal_settings,
    setting_table,
    short_name,
    with_changes,
)
from ..data.comparing.sweep import REPEATS, importance_words, importances, together, why_unknown
from ..data.comparing.tasks import (
    last_evaluations,
    other_tasks,
    solved_by,
    task_settings,
    with_task,
)
from ..data.curves import AxisKind
from ..escaping import visible
from ..live import figures
from ..words import NONE
from . import links, ui, url_state

MAX_RUNS, MAX_DRAWN = 500, len(theme.SERIES)
MAX_TASKS = 300
FEW_RUNS = 8
"""Up to which the tasks of all runs are read at once."""
MAX_AXES = 8
"""Settings that parallel coordinates show."""
_ROW, _MAX_ROWS = 35, 9
"""Pixels of a row of a table, and how many are seen at once."""
TASKS = """
SELECT t.tag, t.env_seed, t.task_key, md5(u.observation) AS first_observation, t.is_success, t.id
FROM trajectories t LEFT JOIN turns u
  ON u.trajectory_id = t.id AND u.attempt = t.attempt AND u.turn = 0 AND u.step = t.step
WHERE t.split = 'eval' AND t.step = (SELECT max(step) FROM trajectories WHERE split = 'eval')
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonChoice:
    """What the controls of the page choose."""

    runs: tuple[str, ...]
    settings: Mapping[str, Settings]
    groups: tuple[RunGroup, ...]
    keys: tuple[str, ...]
    """Metrics that charts show: first the one that the table compares."""
    axis: AxisKind
    smooth: float
    log_y: bool
    window: tuple[int, int]
    """The first and the last step that are compared."""
    baseline: str
    """Id of a group."""
    last_step: int
    """The last that could be chosen."""

    @property
    def main(self) -> str:
        """The metric that the table compares."""
        return self.keys[0]

    @property
    def shown(self) -> list[RunGroup]:
        """The groups that are drawn: not hidden, and no more than there are colours."""
        hidden = set(url_state.list_param("hide", most=MAX_RUNS))
        return [group for group in self.groups if group.id not in hidden][:MAX_DRAWN]

    @property
    def colors(self) -> Mapping[str, str]:
        return drawn.colors([g.id for g in self.groups], [g.id for g in self.shown])


def table_height(num_rows: int) -> int:
    """Pixels of a table of so many rows."""
    return _ROW * (min(num_rows, _MAX_ROWS) + 1) + 2


def sweep(compared: ComparisonChoice, levels: Mapping[str, float]) -> None:
    """What a sweep tells of its settings, where there is more than one."""
    runs = [run for run in compared.runs if math.isfinite(levels.get(run, math.nan))]
    settings = {run: compared.settings[run] for run in runs}
    keys = differing(settings) if runs else []
    axes = together(settings, keys)  # what always varies together is one axis
    if len(axes) < 2:
        return
    st.subheader("Sweep", anchor=False)
    values = [levels[run] for run in runs]
    is_phone = ui.is_phone()
    first = axes[: 4 if is_phone else MAX_AXES]
    columns = {
        _axis_name(of, keys): [settings[run].get(of[0], MISSING) for run in runs] for of in first
    }
    reason = why_unknown(len(values), len(keys))
    left, right = (st.container(), None) if reason else st.columns([3, 2], gap="medium")
    with left:
        figures.show(
            drawn.sweep_spec(
                columns, values, runs, compared.main, row_chars=50 if is_phone else 110
            ),
            f"{len(runs)} runs, by {', '.join(columns)} and {metric(compared.main).name}",
            key="compare_sweep",
        )
        num_left_out = sum(len(of) for of in axes[len(first) :])
        left_out = f"{counted(num_left_out, 'more setting')} differ. " if num_left_out else ""
        st.caption(
            f"{left_out}A line is a run; hovering names it. Blue is low, orange is high. {reason}"
        )
    if right is not None:
        with right:
            _importance(compared.main, settings, dict(zip(runs, values, strict=True)), keys)


def _axis_name(of: Sequence[str], keys: Sequence[str]) -> str:
    """`lr`; `lr and 2 more` for settings that always vary together."""
    others = f" and {len(of) - 1} more" if len(of) > 1 else ""
    return f"{short_name(of[0], keys)}{others}"


def _importance(
    key: str, settings: Mapping[str, Settings], values: Mapping[str, float], keys: Sequence[str]
) -> None:
    with st.spinner("Working out which settings matter"):
        ranked = _importances(settings, values, keys)
    st.text(visible(importance_words(ranked), 600))
    if ranked:
        figures.show(
            drawn.importance_spec(ranked),
            f"Importance of settings for {metric(key).name}: {importance_words(ranked)}",
            key="compare_importance",
        )
    st.caption(
        "A random forest predicts runs that it has not seen. Bars: how much its error grows when "
        f"one setting is shuffled, mean of {REPEATS} repeats; whiskers: smallest and largest. "
        "Grey: not more than a shuffled copy. It finds what goes together here, not causes."
    )


_importances = st.cache_data(max_entries=64, show_spinner=False)(importances)


def settings(compared: ComparisonChoice) -> None:
    """The settings that differ; those that are equal are folded."""
    st.subheader("Settings that differ", anchor=False)
    changes = {run: queries.settings_changes(run) for run in compared.runs}
    held = {run: with_changes(compared.settings[run], changes[run]) for run in compared.runs}
    apart = differing(held)
    if apart:
        st.dataframe(_shown_table(setting_table(compared.groups, held, apart)), hide_index=True)
    else:
        st.caption("None: these runs have the same configuration.")
    if any(changes.values()):
        st.caption("Groups go by the settings at the start, not by what was changed later.")
    equal = equal_settings(held)
    with st.expander(f"{len(equal)} settings are equal", key="equal_settings"):
        st.dataframe(_shown_table(equal), hide_index=True)


def _shown_table(table: pd.DataFrame) -> pd.DataFrame:
    """Text of files, with what is unseen by name."""
    return table.rename(columns=lambda name: visible(str(name), 120)).map(
        lambda cell: visible(str(cell), 300)
    )


@queries.kept
def _evaluated(run: RunReader) -> pd.DataFrame:
    """The metrics of all evaluations, by step."""
    keys = [key for key in run.metric_keys() if key.startswith("eval/")]
    points = run.points(keys).select(["step", "key", "value"]).sort_by("step")
    evaluated: pd.DataFrame = points.to_pandas()
    return evaluated


def evaluations(compared: ComparisonChoice) -> None:
    """The last evaluation of each run."""
    st.subheader("Evaluations", anchor=False)
    table = last_evaluations({run: _evaluated(run) for run in compared.runs})
    if table.empty:
        st.caption("None of these runs was evaluated on fixed tasks.")
        return
    st.dataframe(table, hide_index=True, placeholder=NONE, height=table_height(len(table)))
    differing_tags = other_tasks([queries.info(run).config for run in compared.runs])
    if differing_tags:
        st.caption(
            "Not comparable, because these runs draw other tasks: "
            f"{visible(', '.join(differing_tags))}"
        )


def tasks(compared: ComparisonChoice) -> None:
    """Task by task: the share of a group's runs that solved it. Read when somebody opens it."""
    is_short = len(compared.runs) <= FEW_RUNS
    with st.expander(
        "The same tasks", key="same_tasks", expanded=is_short, on_change="rerun"
    ) as box:
        if box.open:
            _same_tasks(compared)


def _same_tasks(compared: ComparisonChoice) -> None:
    rows = {run: queries.table(run, TASKS) for run in compared.runs}
    has_keys = all(table["task_key"].notna().all() for table in rows.values())
    named = {
        run: with_task(
            table.assign(id=f"{run} " + table["id"]),
            task_settings(queries.info(run).config),
            has_keys=has_keys,
        )
        for run, table in rows.items()
    }
    # Names of groups are hostile and may be those of columns: numbers stand for them.
    columns = [f"group {n}" for n in range(len(compared.groups))]
    solved = solved_by(
        {
            column: pd.concat([named[run] for run in group.runs])
            for column, group in zip(columns, compared.groups, strict=True)
        }
    )
    if solved.empty:
        ui.empty(
            "These runs were not evaluated on common tasks. Two runs share a task if the settings "
            "of the evaluation and the first state of the task are equal."
        )
        return
    table = solved.head(MAX_TASKS)[["tag", "env_seed"]].astype({"env_seed": str})
    table = table.rename(columns={"tag": "tasks", "env_seed": "task"})
    config: dict[str, Any] = {}
    for column, group in zip(columns, compared.groups, strict=True):
        table[column] = 100 * solved[column]
        links_of = solved[f"{column} id"].head(MAX_TASKS)
        table[f"{column} replay"] = [_link(identity) for identity in links_of]
        name = visible(group.name, 80)
        config[column] = st.column_config.NumberColumn(name, format="%.0f %%")
        config[f"{column} replay"] = st.column_config.LinkColumn("Replay", display_text="open")
    st.dataframe(table, hide_index=True, height=320, placeholder=NONE, column_config=config)
    st.caption(
        f"{len(solved)} tasks in common, at each run's last evaluation; those in which the runs "
        "differ most come first."
    )


def _link(identity: object) -> str | None:
    """To one of the episodes: `run id`."""
    run, _, trajectory = identity.rpartition(" ") if isinstance(identity, str) else ("", "", "")
    return links.url("replay", run=run, trajectory=trajectory) if run else None
