"""Compare: groups of runs as bands, how far they differ, in which settings, and who solved what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts import compare as drawn
from echoscope.dashboard.charts import theme
from echoscope.dashboard.charts.charts import LineOptions
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.comparing.groups import (
    EACH_RUN,
    RunGroup,
    Settings,
    differing,
    grouped,
    seed_of,
    settings_of,
)
from echoscope.dashboard.data.comparing.levels import (
    Gap,
    Level,
    count_words,
    gap_between,
    gap_words,
    level_of,
    level_words,
    summary,
)
from echoscope.dashboard.data.comparing.series import (
    axis_of,
    bucket_width,
    bucketed,
    default_window,
    drawn_axis,
    mean_curve,
    run_level,
)
from echoscope.dashboard.data.curves import AXES, AxisKind
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import comparison, links, ui, url_state
from echoscope.dashboard.page.comparison import Comparison, table_height
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.words import plain
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import ENTROPY, RETURN, SUCCESS

MAX_RUNS = 100
MAX_DRAWN = len(theme.SERIES)
CURATED = (SUCCESS, RETURN, ENTROPY, "info/first_turn/dependence", "text/retrieval_accuracy")
MAX_CHARTS = 12
_MIN_WIDTH = 360


def draw() -> None:
    if not queries.runs():
        ui.empty_root()
        return
    head = st.container(horizontal=True, vertical_alignment="bottom", key="compare_head")
    runs = url_state.pick_runs(head, most=MAX_RUNS, key="compared")
    if len(runs) < 2:
        ui.empty("Choose two runs or more above, or tick them on the page Runs.")
        return
    with st.spinner(f"Reading {len(runs)} runs"):
        compared, look = _compared(runs, head)
    levels = _levels(compared, head)
    _curves(compared, *look)
    comparison.sweep(compared, levels)
    left, right = st.columns(2, gap="medium")
    with left:
        comparison.settings(compared)
    with right:
        comparison.evaluations(compared)
    comparison.tasks(compared)
    links.link("Own panels of these runs", "panels", run=None, runs=",".join(runs[:MAX_DRAWN]))


Look = tuple[AxisKind, float, bool]
"""Axis, smoothing, logarithmic scale."""


def _compared(runs: Sequence[str], line: DeltaGenerator) -> tuple[Comparison, Look]:
    """The controls in a line, and what they choose."""
    infos = {run: queries.info(run) for run in runs}
    keys = sorted(set().union(*(queries.metric_keys(run) for run in runs)))
    settings = {run: settings_of(infos[run].config) for run in runs}
    if not keys:
        raise Problem("None of these runs has a metric.", "Choose runs that have finished a step.")
    with line:
        main = url_state.choose(
            "metric",
            "Compare by",
            keys,
            default=next((key for key in (_evaluated(keys), *CURATED) if key in keys), keys[0]),
            label_of=lambda key: plain(metric(key).name),
        )
    with line.popover("Options", key="compare_options"):
        by = _group_by(settings)
        chosen = st.multiselect(
            "Charts",
            keys,
            default=[key for key in CURATED if key in keys and key != main][:2],
            key="metrics",
            bind="query-params",
            format_func=lambda key: f"{metric(key).name}  ({key})",
            max_selections=MAX_CHARTS,
        )
        kind = st.segmented_control(
            "Axis", AXES, default="step", required=True, key="x", bind="query-params"
        )
        smooth = st.slider("Smoothing", 0.0, 0.99, 0.0, 0.01, key="smooth", bind="query-params")
        log_y = st.toggle("Logarithmic scale", key="log", bind="query-params")
    groups = grouped(runs, settings, by)
    charts = tuple(dict.fromkeys([main, *chosen]))
    width = bucket_width(max(info.last_step for info in infos.values()))
    compared = Comparison(
        runs=tuple(runs),
        settings=settings,
        groups=tuple(groups),
        shown=tuple(_shown(groups)),
        keys=charts,
        main=main,
        tables={run: bucketed(run, charts, width) for run in runs},
        width=width,
    )
    return compared, (kind or "step", float(smooth), bool(log_y))


def _evaluated(keys: Sequence[str]) -> str:
    """The success on fixed tasks, if the runs have it: over all tags, or of the first."""
    of = [key for key in keys if key.startswith("eval/") and key.endswith("/success_rate")]
    return next((key for key in of if key == "eval/all/success_rate"), of[0] if of else "")


def _group_by(settings: Mapping[str, Settings]) -> list[str]:
    """The settings that make groups: all that differ, unless somebody chose."""
    apart = differing(settings)
    # Runs of equal settings are apart by nothing but themselves.
    usual = (
        apart if len({tuple(of.get(key) for key in apart) for of in settings.values()}) > 1 else []
    )
    default = usual or [EACH_RUN]
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
        format_func=lambda name: "each run" if name == EACH_RUN else plain(name),
        help="Runs of equal settings are one group: a line is their mean, the band its 95 % "
        "interval. The seed never counts.",
    )
    return list(chosen) or default


def _shown(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """The groups that are drawn: not hidden, and no more than there are colours."""
    hidden = set(url_state.list_param("hide", most=MAX_RUNS))
    return [group for group in groups if group.id not in hidden][:MAX_DRAWN]


# --- how far groups differ


def _levels(compared: Comparison, line: DeltaGenerator) -> dict[str, float]:
    """The window, the sentence, and the table that is the legend as well; run -> its level.

    Args:
        line: Of the controls.
    """
    groups = compared.groups
    names = {group.id: group.name for group in groups}
    with line:
        window = _window(compared)
        baseline = url_state.choose(
            "baseline",
            "Baseline",
            [group.id for group in groups],
            default=groups[0].id,
            label_of=lambda group: visible(names[group], 80),
            clears=(),
        )
    infos = {run: queries.info(run) for run in compared.runs}
    levels = {
        group.id: level_of(
            compared.main,
            [
                run_level(
                    run,
                    compared.tables[run],
                    compared.main,
                    window,
                    width=compared.width,
                    seed=seed_of(infos[run].config),
                )
                for run in group.runs
            ],
        )
        for group in groups
    }
    gaps = {
        group.id: gap_between(levels[group.id], levels[baseline])
        for group in groups
        if group.id != baseline
    }
    by_name = {names[of]: level for of, level in levels.items()}
    sentence = summary(
        compared.main, by_name, {names[of]: gap for of, gap in gaps.items()}, names[baseline]
    )
    st.text(visible(sentence, 600))
    _table(compared, levels, gaps)
    num_left_out = len(groups) - len(compared.shown)
    of_groups = f"{len(compared.shown)} of {len(groups)} groups are drawn. " if num_left_out else ""
    has_single_runs = any(level.is_of_one_run for level in levels.values())
    luck = "With many groups, one in twenty differs from the baseline by chance."
    single = "The interval of a single run is over its steps or tasks and knows no other seed. "
    st.caption(
        f"{of_groups}Means over steps {window[0]} to {window[1]} with 95 % intervals over runs. "
        f"{single * has_single_runs}{luck * (len(groups) > 2)}"
    )
    return {level.run: level.mean for of in levels.values() for level in of.runs}


def _window(compared: Comparison) -> tuple[int, int]:
    """The steps that are compared; never a single one."""
    last_steps = [queries.info(run).last_step for run in compared.runs]
    last = max(1, *last_steps)
    default = default_window(last_steps)
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

    chosen: Any = st.slider("Steps compared", 0, last, key=key, on_change=store, width=260)
    return int(chosen[0]), int(chosen[1])


def _table(compared: Comparison, levels: Mapping[str, Level], gaps: Mapping[str, Gap]) -> None:
    """A row a group: colour, name, level, how far it is from the baseline; hide and solo."""
    groups, colors = compared.groups, compared.colors
    ids = [group.id for group in groups]
    is_drawn = [group.id in colors for group in groups]
    rows = pd.DataFrame(
        {
            "color": ["\u2501\u2501" if at else "" for at in is_drawn],
            "group": [visible(group.name, 160) for group in groups],
            "level": [level_words(levels[of]) for of in ids],
            "gap": [gap_words(gaps[of]) if of in gaps else "baseline" for of in ids],
            "n": [count_words(levels[of]) for of in ids],
            "hide": ["Hide" if at else "Show" for at in is_drawn],
            "solo": ["Solo" if len(colors) > 1 or not at else "All" for at in is_drawn],
        }
    )
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
                "are compared seed by seed.",
            ),
            "n": st.column_config.TextColumn("From", help="What the interval rests on."),
            "hide": _button("compare_hide", _toggle, ids, compared),
            "solo": _button("compare_solo", _solo, ids, compared),
        },
        alt=f"Groups of runs compared by {name}",
    )


def _button(key: str, act: Any, ids: Sequence[str], compared: Comparison) -> Any:
    return st.column_config.ButtonColumn(
        "",
        type="tertiary",
        width=64,
        key=key,
        on_click=act,
        args=(key, tuple(ids), compared.colors),
    )


def _clicked(key: str, ids: Sequence[str]) -> str | None:
    row = st.session_state[key]["row"]
    return ids[row] if row < len(ids) else None


def _toggle(key: str, ids: Sequence[str], drawn_ids: Mapping[str, str]) -> None:
    """Hide a group that is drawn; draw one that is not, in the place of the last if need be."""
    of = _clicked(key, ids)
    if of is not None:
        still_drawn = [each for each in drawn_ids if each != of]
        _hide_all_but(ids, still_drawn if of in drawn_ids else [*still_drawn[: MAX_DRAWN - 1], of])


def _solo(key: str, ids: Sequence[str], drawn_ids: Mapping[str, str]) -> None:
    """Draw one group alone; all of them again where it is alone already."""
    of = _clicked(key, ids)
    if of is not None:
        _hide_all_but(ids, ids if list(drawn_ids) == [of] else [of])


def _hide_all_but(ids: Sequence[str], shown: Sequence[str]) -> None:
    url_state.go(hide=",".join(each for each in ids if each not in shown))


# --- curves


def _curves(compared: Comparison, kind: AxisKind, smooth: float, log_y: bool) -> None:
    axes = {run: axis_of(run, kind) for group in compared.shown for run in group.runs}
    if not axes:
        ui.empty("Every group is hidden. Click Show in the table.")
        return
    axis = drawn_axis(axes, kind)
    options = LineOptions(height=drawn.HEIGHT, has_legend=False, log_y=log_y)
    grid = st.grid("auto", min_column_width=_MIN_WIDTH)
    for key in compared.keys:
        curves = [
            mean_curve(
                group,
                key,
                compared.tables,
                axes,
                width=compared.width,
                smooth=smooth,
                color=compared.colors[group.id],
            )
            for group in compared.shown
        ]
        with grid.cell():
            figures.show(
                drawn.band_spec(key, curves, axis, options),
                metric(key).name,
                key=f"compare {key}",
                revision=f"{kind} {compared.runs}",
            )


ui.frame("Compare", draw)
