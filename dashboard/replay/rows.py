"""The list of the replay as rows of a table: which columns, and how each value is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from ..escaping import visible
from ..words import NONE
from .list import UNKNOWN, kept_word, success_word

Extra = Sequence[tuple[str, str]]
"""(column, heading) of what a source knows besides."""
_FORMS = {
    "return": "{:.3g}",
    "advantage": "{:+.2f}",
    "turns": "{:.0f}",
    "tokens": "{:,.0f}",
    "group": "{:.0f}",
    "change": "{:+.3g}",
}
"""Columns of numbers, and how a number is written."""
_LABELS = {
    "id": "id",
    "return": "return",
    "success": "success",
    "advantage": "advantage",
    "update": "update",
    "turns": "turns",
    "tokens": "tokens",
    "ended": "ended by",
    "dropped": "dropped because",
    "group": "group",
    "tag": "tag",
}
_MAY_BE_UNKNOWN = ("advantage", "update", "tokens", "dropped")
"""Columns that only the trainer can fill."""
_SHOWN = "background-color: rgba(128, 128, 128, 0.25)"


def pick_table(
    rows: pd.DataFrame,
    extra: Extra,
    *,
    key: str,
    picked: str | None,
    on_pick: Callable[[str], None],
) -> None:
    """Draw the trajectories of which one is shown; a click on another id calls `on_pick`."""
    ids = tuple(str(trajectory_id) for trajectory_id in rows["id"])
    cells = list_cells(rows, extra)

    def take() -> None:
        place = st.session_state[f"{key}:open"]["row"]
        if place < len(ids):
            on_pick(ids[place])

    labels = {**_LABELS, **dict(extra)}
    columns: dict[str, Any] = {
        name: st.column_config.TextColumn(
            labels[name], alignment="right" if name in _FORMS else "left"
        )
        for name in cells.columns
    }
    columns["id"] = st.column_config.ButtonColumn(
        "id", type="tertiary", alignment="left", pinned=True, key=f"{key}:open", on_click=take
    )
    st.dataframe(
        cells.style.apply(
            lambda row: [_SHOWN if ids[row.name] == picked else ""] * len(row), axis="columns"
        ),
        hide_index=True,
        column_config=columns,
        placeholder=NONE,
        key=key,
        alt="Trajectories",
    )


def list_cells(rows: pd.DataFrame, extra: Extra = ()) -> pd.DataFrame:
    """One row a trajectory, all cells text; what is unseen in texts of a file is made visible.

    The columns of `extra` stand behind return and success, with which every list begins. What is
    known of no trajectory has no column.
    """
    records = [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]
    first, rest = list(_LABELS)[:3], list(_LABELS)[3:]
    names = [*first, *(name for name, _ in extra), *rest]
    cells = pd.DataFrame([_cells(row, extra) for row in records], columns=names)
    empty = [name for name in _MAY_BE_UNKNOWN if cells[name].isin([None, UNKNOWN]).all()]
    return cells.drop(columns=empty)


def _cells(row: Mapping[str, Any], extra: Extra) -> dict[str, str | None]:
    dropped = row["drop_reason"]
    cells = {
        "id": visible(str(row["id"]), 80),
        "return": _number(row["episode_return"], _FORMS["return"]),
        "success": success_word(row["is_success"]),
        "advantage": _number(row["advantage"], _FORMS["advantage"]),
        "update": kept_word(row["kept"], row["split"]),
        "turns": _number(row["num_turns"], _FORMS["turns"]),
        # A reply has a token at least: 0 means that nobody counted.
        "tokens": _number(row["num_sampled_tokens"] or None, _FORMS["tokens"]),
        "ended": visible(str(row["stop_reason"]), 60),
        "dropped": visible(dropped, 200) if isinstance(dropped, str) else None,
        "group": _number(row["group_index"], _FORMS["group"]),
        "tag": visible(str(row["tag"]), 80),
    }
    for name, _ in extra:
        form = _FORMS.get(name)
        cells[name] = visible(str(row[name]), 120) if form is None else _number(row[name], form)
    return cells


def _number(value: Any, form: str) -> str | None:
    return None if value is None or pd.isna(value) else form.format(value)
