"""Further columns of the page Runs: any setting, the newest value of any metric, means over seeds.

A name with a slash is a metric (`policy/entropy`), any other a setting (`optim.lr`).
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.diagnostics.metric_entry import SHARE, SUCCESS
from echoscope.store.errors import StoreError
from echoscope.store.log.index import read_run_json
from echoscope.store.log.layout import Layout
from echoscope.store.query.listing import RunRow

from ..charts import theme
from ..charts.charts import LineOptions, line_spec
from ..data import queries
from ..data.curves import Curve, curve, step_axis
from ..escaping import visible
from ..labels import value_words
from ..live import figures
from ..words import NONE, flat, setting_words
from .problems import Problem
from .url_state import list_param

PARAM = "columns"
"""Of the address: names with commas."""
MAX_COLUMNS = 12
MAX_CURVES = 8
_PER_RUN = ("name", "seed", "from_run")
"""Settings in which runs differ that only repeat one another."""
_ABOUT_FILES = ("imported", "watched", "recorded", "controls", "recipe")
"""Beginnings of what a run says of its data and of its recipe, and not of its training."""
_ABOUT_WATCHING = ("diagnostics.", "checkpoint.", "eval.", "live.")


def pick_columns(rows: Sequence[RunRow]) -> list[str]:
    """The columns that the address names, and a picker of settings and metrics behind a button."""
    asked = list_param(PARAM, most=MAX_COLUMNS)

    def changed() -> None:
        st.query_params[PARAM] = ",".join(st.session_state["picked_columns"])

    with st.popover("Columns", on_change="rerun", key="columns_box", width="stretch") as box:
        if box.open:
            known = sorted({name for row in rows for name in (*settings_of(row), *_metrics(row))})
            st.multiselect(
                "Settings and metrics",
                [*known, *(name for name in asked if name not in known)],
                default=asked,
                key="picked_columns",
                on_change=changed,
                max_selections=MAX_COLUMNS,
                format_func=lambda name: visible(name, 120),
                help="Settings have dots (optim.lr), metrics a slash (policy/entropy).",
            )
    return asked


def _metrics(row: RunRow) -> Sequence[str]:
    try:
        return queries.metric_keys(row.run_id)
    except Problem:
        return ()


def settings_of(row: RunRow) -> Mapping[str, Any]:
    """All settings of a run, as flat dotted keys; none where they cannot be read."""
    return _settings(row.path, row.created_at)


@functools.lru_cache(maxsize=1024)
def _settings(path: Path, created_at: float) -> Mapping[str, Any]:
    try:
        config = read_run_json(Layout(path)).get("config")
        config = json.loads(config) if isinstance(config, str) else config
    except (StoreError, ValueError, RecursionError):
        return {}
    return flat(config) if isinstance(config, dict) else {}


def value_of(row: RunRow, name: str) -> float | str | None:
    """The setting of a run, or the newest finite value of its metric; None where it has none."""
    settings = settings_of(row)
    if name in settings:
        value = settings[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if is_number else setting_words(value)
    try:
        values = queries.series(row.run_id, [name])["value"].dropna()
    except Problem:
        return None
    return float(values.iloc[-1]) if len(values) else None


def words_of(name: str, value: float | str | None) -> str | None:
    """A value as a cell of the table."""
    if value is None or isinstance(value, str):
        return None if value is None else visible(value, 120)
    return value_words(name, value) if "/" in name else setting_words(value)


def seed_groups(rows: Sequence[RunRow]) -> list[list[RunRow]]:
    """Runs that differ in nothing but their seed, in the order of the first of each."""
    groups: dict[str, list[RunRow]] = {}
    for row in rows:
        kept = {k: v for k, v in settings_of(row).items() if k not in _PER_RUN}
        groups.setdefault(json.dumps(kept, sort_keys=True, default=str), []).append(row)
    return list(groups.values())


def mean_interval(values: Sequence[float], *, is_share: bool) -> tuple[float, float, float]:
    """Mean, and its 95 % interval over runs by Student's t.

    A share cannot leave 0 to 1: its interval is Wilson's, over as many trials as would scatter like
    the runs do. The ends are NaN where no scatter is seen: one run, or all runs equal.
    """
    count = len(values)
    if len(set(values)) < 2:
        return (float(values[0]) if count else math.nan), math.nan, math.nan
    from scipy.special import stdtrit  # takes a while: only where seeds are averaged

    mean, variance = float(np.mean(values)), float(np.var(values, ddof=1)) / count
    t = float(stdtrit(count - 1, 0.975))
    if not is_share:
        half = t * math.sqrt(variance)
        return mean, mean - half, mean + half
    low, high = wilson_interval(mean, mean * (1 - mean) / variance, t)
    return mean, float(low), float(high)


def seeds_table(groups: Sequence[Sequence[RunRow]], names: Sequence[str]) -> pd.DataFrame:
    """One row a group of seeds: how many runs, the settings that tell groups apart, and means."""
    settings = [settings_of(group[0]) for group in groups]
    keys = sorted(set().union(*settings) - set(_PER_RUN) - {"branched_from"})
    keys = [key for key in keys if key.partition(".")[0] not in _ABOUT_FILES]
    keys.sort(key=lambda key: key.startswith(_ABOUT_WATCHING))  # what trains comes first
    telling = [key for key in keys if len({repr(one.get(key)) for one in settings}) > 1][:6]
    shown = [name for name in names if name not in telling]
    table = []
    for group, config in zip(groups, settings, strict=True):
        success = [row.success_rate for row in group if row.success_rate is not None]
        cells: dict[str, Any] = {
            "names": visible(", ".join(row.run_id for row in group), 300),
            "runs": len(group),
            "environment": visible(", ".join(group[0].environments), 80),
            "success": _mean_words(SUCCESS, success),
            **{key: visible(setting_words(config.get(key)), 80) for key in telling},
        }
        for name in shown:
            values = [value_of(row, name) for row in group]
            numbers = [value for value in values if isinstance(value, float)]
            texts = {words_of(name, value) or NONE for value in values}
            is_text = len(numbers) < len(values)
            cells[name] = ", ".join(sorted(texts)) if is_text else _mean_words(name, numbers)
        table.append(cells)
    return pd.DataFrame(table)


def _mean_words(name: str, values: Sequence[float]) -> str:
    is_share = "/" in name and metric(name).unit == SHARE
    numbers = mean_interval(values, is_share=is_share)
    mean, *ends = [value_words(name, v) if "/" in name else f"{v:.3g}" for v in numbers]
    if math.isnan(numbers[0]):
        return NONE
    return mean if math.isnan(numbers[1]) else f"{mean} ({' to '.join(ends)})"


def curves(groups: Sequence[Sequence[RunRow]]) -> None:
    """Training success over the steps: one curve a group, the mean of its runs with its interval.

    The part of the page that holds them is drawn again at its beat, so curves of live runs go on.
    """
    shown = groups[:MAX_CURVES]
    drawn = []
    for place, group in enumerate(shown):
        color, dash = theme.style_of(place)
        one = _group_curve(group, color, dash)
        if one is not None:
            drawn.append(one)
    if not drawn:
        return
    axis = step_axis(queries.step_table(shown[0][0].run_id))
    words = metric(SUCCESS)
    figures.show(
        line_spec(
            drawn,
            axis,
            options=LineOptions(height=330),
            title="Success in training",
            help=words.help,
        ),
        "Success in training of the runs",
        key="runs_curves",
        revision=str([row.run_id for group in shown for row in group]),
    )
    if len(groups) > len(shown):
        st.caption(f"Curves of the first {len(shown)} of {len(groups)}.")


def _group_curve(group: Sequence[RunRow], color: str, dash: str) -> Curve | None:
    tables = []
    for row in group:
        try:
            data = queries.series(row.run_id, [SUCCESS], phase="train")
        except Problem:
            continue
        tables.append(data.drop_duplicates("step", keep="last").set_index("step")["value"])
    values = pd.concat(tables, axis=1) if tables else pd.DataFrame()
    values = values.dropna() if len(tables) > 1 else values
    if not len(values):
        return None
    lines = [mean_interval(list(line), is_share=True) for line in values.to_numpy(np.float64)]
    means, lows, highs = np.array(lines).T
    name = group[0].run_id if len(group) == 1 else f"{len(group)} runs as {group[0].run_id}"
    plain = curve(
        pd.DataFrame({"step": values.index, "key": SUCCESS, "value": means}),
        SUCCESS,
        name=visible(name, 60),
        color=color,
    )
    if len(tables) > 1:
        plain = replace(plain, low=lows, high=highs)
    return replace(plain, dash=dash)
