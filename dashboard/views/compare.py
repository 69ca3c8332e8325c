"""Compare: groups of runs as bands, how far they differ, in which settings, and who solved what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts import compare as drawn
from echoscope.dashboard.charts.charts import LineOptions, line_spec
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing.groups import (
    EACH_RUN,
    Settings,
    differing,
    grouped,
    seed_of,
    settings_of,
)
from echoscope.dashboard.data.comparing.levels import (
    Gap,
    GroupLevel,
    count_words,
    gap_between,
    gap_words,
    level_of,
    level_words,
    summary,
)
from echoscope.dashboard.data.comparing.series import (
    USUAL_STEPS,
    bucket_width,
    bucketed,
    default_window,
    drawn_axis,
    mean_curve,
    run_level,
)
from echoscope.dashboard.data.comparing.tasks import played_tasks
from echoscope.dashboard.data.curves import AXES, step_axis, success_keys
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import comparison, links, ui, url_state
from echoscope.dashboard.page.comparison import MAX_DRAWN, MAX_RUNS, ComparisonChoice, table_height
from echoscope.dashboard.page.problems import Problem
from echoscope.diagnostics.catalogue import metric
from echoscope.store.query.metric_keys import ENTROPY, RETURN_MEAN, SUCCESS_RATE
from echoscope.store.status import RUNNING

CURATED = (
    SUCCESS_RATE,
    RETURN_MEAN,
    ENTROPY,
    "info/first_turn/dependence",
    "text/retrieval_accuracy",
)
CHARTS = (SUCCESS_RATE, ENTROPY, RETURN_MEAN, *CURATED[3:])
"""Beside the compared metric: a return that is a success would show the same curve twice."""
MAX_CHARTS = 12
_MIN_WIDTH = 360


EVERY_S = 5.0
"""Between two drawings of the numbers of runs that are live."""


def draw(head: DeltaGenerator) -> None:
    if not queries.runs(most=ui.MAX_PICKED):
        ui.empty_root()
        return
    runs = url_state.pick_runs(head, most=MAX_RUNS, key="compared")
    if len(runs) < 2:
        ui.empty("Choose two runs or more above, or tick them on the page Runs.")
        return
    live = _live(runs)
    with st.spinner(f"Reading {len(runs)} runs"):
        asked = _asked(runs, head)
        _tables(asked)  # under the spinner; from here on the answers are kept

    def numbers() -> None:
        _levels(asked)
        _curves(asked)

    def has_news() -> bool:
        """A run has begun or ended to be live, or is far beyond the steps that can be chosen."""
        return _live(runs) != live or _last_step(runs) > asked.last_step + max(
            USUAL_STEPS, asked.last_step // 10
        )

    beat("compare", EVERY_S if live else None, numbers, has_news=has_news)
    by_group = _levels_of(asked).values()
    comparison.sweep(asked, {level.run: level.mean for of in by_group for level in of.runs})
    left, right = st.columns(2, gap="medium")
    with left:
        comparison.settings(asked)
    with right:
        comparison.evaluations(asked)
    comparison.tasks(asked)
    links.link("Own panels of these runs", "panels", run=None, runs=",".join(runs[:MAX_DRAWN]))


def _live(runs: Sequence[str]) -> list[str]:
    return [run for run in runs if queries.info(run).status == RUNNING]


def _last_step(runs: Sequence[str]) -> int:
    return max(1, *(queries.info(run).last_step for run in runs))


def _asked(runs: Sequence[str], head: DeltaGenerator) -> ComparisonChoice:
    """The controls, and what they choose."""
    keys = sorted(set().union(*(queries.metric_keys(run) for run in runs)))
    settings = {run: settings_of(queries.info(run).config) for run in runs}
    if not keys:
        raise Problem("None of these runs has a metric.", "Choose runs that have finished a step.")
    options = head.popover("Options", key="compare_options")
    left, middle, right = st.columns([2, 2, 1], vertical_alignment="bottom")
    with left:
        main = url_state.choose(
            "metric",
            "Compare by",
            keys,
            default=next(
                (key for key in (*success_keys(keys, ("eval/",)), *CURATED) if key in keys), keys[0]
            ),
            label_of=lambda key: visible(metric(key).name, 120),
        )
    with options:
        by = _group_by(settings)
        chosen = st.multiselect(
            "Charts",
            keys,
            default=[key for key in CHARTS if key in keys and key != main][:2],
            key="metrics",
            bind="query-params",
            format_func=lambda key: visible(f"{metric(key).name}  ({key})", 200),
            max_selections=MAX_CHARTS,
        )
        kind = st.segmented_control(
            "Axis", AXES, default="step", required=True, key="x", bind="query-params"
        )
        smooth = st.slider("Smoothing", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params")
        log_y = st.toggle("Logarithmic scale", key="log", bind="query-params")
    groups = tuple(grouped(runs, settings, by))
    names = {group.id: group.name for group in groups}
    with middle:
        baseline = url_state.choose(
            "baseline",
            "Baseline",
            [*names],
            default=groups[0].id,
            label_of=lambda group: visible(names[group], 80),
        )
    last_step = _last_step(runs)
    with right:
        window = _window(runs, last_step)
    return ComparisonChoice(
        runs=tuple(runs),
        settings=settings,
        groups=groups,
        keys=tuple(dict.fromkeys([main, *chosen])),
        axis=kind or "step",
        smooth=float(smooth),
        log_y=bool(log_y),
        window=window,
        baseline=baseline,
        last_step=last_step,
    )


def _tables(asked: ComparisonChoice) -> tuple[Mapping[str, pd.DataFrame], int]:
    """Run -> means of the metrics in ranges of steps as they are now; and how wide a range is."""
    width = bucket_width(_last_step(asked.runs))
    return {run: bucketed(run, asked.keys, width) for run in asked.runs}, width


def _group_by(settings: Mapping[str, Settings]) -> list[str]:
    """The settings that make groups: all that differ, unless somebody chose."""
    apart = differing(settings)
    default = apart or [EACH_RUN]  # equal settings: apart by nothing but themselves
    key = "compare_by"
    asked = [name for name in url_state.list_param("by") if name in apart or name == EACH_RUN]
    st.session_state[key] = asked or default

    def store() -> None:
        by = st.session_state[key]
        url_state.go(by=None if by == default or not by else ",".join(by))

    chosen = st.multiselect(
        "Group by",
        [*apart, EACH_RUN],
        key=key,
        on_change=store,
        format_func=lambda name: "each run" if name == EACH_RUN else visible(name, 120),
        help="Runs of equal settings are one group: a line is their mean, the band its 95 % "
        "interval. The seed never counts.",
    )
    return list(chosen) or default


# --- how far groups differ


def _levels_of(compared: ComparisonChoice) -> dict[str, GroupLevel]:
    """Id of a group -> the level of its runs in the window."""
    tables, width = _tables(compared)
    return {
        group.id: level_of(
            compared.main,
            [
                run_level(
                    run,
                    tables[run],
                    compared.main,
                    compared.window,
                    width=width,
                    seed=seed_of(queries.info(run).config),
                    played=played_tasks(queries.info(run).config, compared.main),
                )
                for run in group.runs
            ],
        )
        for group in compared.groups
    }


def _levels(compared: ComparisonChoice) -> None:
    """The sentence, and the table that is the legend as well."""
    groups, window = compared.groups, compared.window
    names = {group.id: group.name for group in groups}
    levels = _levels_of(compared)
    gaps = {of: gap_between(levels[of], levels[compared.baseline]) for of in names}
    del gaps[compared.baseline]
    by_name = {names[of]: level for of, level in levels.items()}
    gaps_by_name = {names[of]: gap for of, gap in gaps.items()}
    sentence = summary(compared.main, by_name, gaps_by_name, names[compared.baseline])
    st.text(visible(sentence, 600))
    _table(compared, levels, gaps)
    num_left_out = len(groups) - len(compared.shown)
    of_groups = f"{len(compared.shown)} of {len(groups)} groups are drawn. " if num_left_out else ""
    has_single_runs = any(len(level.runs) == 1 for level in levels.values())
    luck = "With many groups, one in twenty differs from the baseline by chance."
    single = "The interval of a single run is over its steps or tasks and knows no other seed. "
    st.caption(
        f"{of_groups}Means over steps {window[0]} to {window[1]} with 95 % intervals over runs. "
        f"{single * has_single_runs}{luck * (len(groups) > 2)}"
    )


def _window(runs: Sequence[str], last: int) -> tuple[int, int]:
    """The steps that are compared; never a single one."""
    default = default_window([queries.info(run).last_step for run in runs])
    asked = st.query_params.get("steps", "")
    low, _, high = asked.partition("-")
    window = default
    if low.isdecimal() and high.isdecimal() and len(asked) < 20 and int(low) < int(high) <= last:
        window = int(low), int(high)
    elif asked:
        ui.notice(
            f"steps={asked[:40]!r} in the address is no range of two steps or more within "
            f"0-{last}; {default[0]}-{default[1]} is used"
        )
    key = "compare_steps"
    st.session_state[key] = window

    def store() -> None:
        first, end = st.session_state[key]
        if first == end:  # one step is noise: its neighbour comes along
            first, end = (first - 1, end) if first else (first, end + 1)
        url_state.go(steps=None if (first, end) == default else f"{first}-{end}")

    chosen: Any = st.slider("Steps compared", 0, last, key=key, on_change=store)
    return int(chosen[0]), int(chosen[1])


def _table(
    compared: ComparisonChoice, levels: Mapping[str, GroupLevel], gaps: Mapping[str, Gap]
) -> None:
    """A row a group: colour, name, level, how far it is from the baseline; hide and solo."""
    groups, colors = compared.groups, compared.colors
    ids = [group.id for group in groups]
    is_drawn = [group.id in colors for group in groups]
    rows = pd.DataFrame(
        {
            "color": ["\u2501\u2501" if is_on else "" for is_on in is_drawn],
            "group": [visible(group.name, 160) for group in groups],
            "level": [level_words(levels[of]) for of in ids],
            "gap": [gap_words(gaps[of]) if of in gaps else "baseline" for of in ids],
            "n": [count_words(levels[of]) for of in ids],
            "hide": ["Hide" if is_on else "Show" for is_on in is_drawn],
            "solo": ["Solo" if len(colors) > 1 or not is_on else "All" for is_on in is_drawn],
        }
    )

    def show(drawn: Sequence[str]) -> None:
        url_state.go(hide=",".join(each for each in ids if each not in drawn))

    def toggle(of: str) -> None:
        """A group that is not drawn takes the place of the last if need be."""
        others = [each for each in colors if each != of]
        show(others if of in colors else [*others[: MAX_DRAWN - 1], of])

    def alone(of: str) -> None:
        """All of them again where it is alone already."""
        show(ids if list(colors) == [of] else [of])

    css = [f"color: {colors.get(of, 'inherit')}; font-weight: 700" for of in ids]
    styled = rows.style.apply(lambda _: css, subset=["color"])
    name = metric(compared.main).name
    st.dataframe(
        styled,
        hide_index=True,
        height=table_height(len(rows)),
        key="compare_table",
        column_config={
            "color": st.column_config.TextColumn("", width=44),
            "group": "Group",
            "level": st.column_config.TextColumn(f"{name} (95 %)"),
            "gap": st.column_config.TextColumn(
                "Against the baseline",
                help="Difference of the means with its 95 % interval. Groups with the same seeds "
                "and the same tasks are compared seed by seed.",
            ),
            "n": st.column_config.TextColumn("From", help="What the interval rests on."),
            "hide": ui.button_column("", "compare_hide", ids, toggle, width=64),
            "solo": ui.button_column("", "compare_solo", ids, alone, width=64),
        },
        alt=f"Groups of runs compared by {name}",
    )


# --- curves


def _curves(compared: ComparisonChoice) -> None:
    axes = {
        run: step_axis(queries.step_table(run), compared.axis)
        for group in compared.shown
        for run in group.runs
    }
    if not axes:
        ui.empty("Every group is hidden. Click Show in the table.")
        return
    tables, width = _tables(compared)
    axis = drawn_axis(axes, compared.axis)
    options = LineOptions(height=drawn.HEIGHT, has_legend=False, log_y=compared.log_y)
    grid = st.grid("auto", min_column_width=_MIN_WIDTH)
    for key in compared.keys:
        curves = [
            mean_curve(
                group,
                key,
                tables,
                axes,
                width=width,
                smooth=compared.smooth,
                color=compared.colors[group.id],
            )
            for group in compared.shown
        ]
        about = metric(key)
        with grid.cell():
            figures.show(
                line_spec(curves, axis, options=options, title=about.name, help=about.help),
                about.name,
                key=f"compare {key}",
                revision=f"{compared.axis} {compared.runs}",
            )


ui.frame("Compare", draw)
