"""The list of the replay as a table: which columns, and how each value is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd
import streamlit as st

from ..escaping import visible
from ..words import NONE
from .listing import UNKNOWN, kept_word, success_word

_FORMS = {
    "return": ("episode_return", "{:.3g}"),
    "advantage": ("advantage", "{:+.2f}"),
    "turns": ("num_turns", "{:.0f}"),
    "tokens": ("num_sampled_tokens", "{:,.0f}"),
    "group": ("group_index", "{:.0f}"),
}
"""Columns of numbers: where each comes from, and how a number is written."""
_COLUMNS = (
    *("id", "return", "success", "match", "advantage", "update", "turns", "tokens", "ended by"),
    *("dropped because", "group", "tag"),
)
_SHOWN = "background-color: rgba(128, 128, 128, 0.25)"


def pick_table(
    rows: pd.DataFrame, *, key: str, picked: str | None, on_pick: Callable[[str], None]
) -> None:
    """Draw the trajectories of which one is shown; a click on another id calls `on_pick`."""
    ids = tuple(str(trajectory_id) for trajectory_id in rows["id"])
    cells = list_cells(rows)

    def take() -> None:
        row = st.session_state[f"{key}:open"]["row"]
        if row < len(ids):
            on_pick(ids[row])

    columns: dict[str, Any] = {
        name: st.column_config.TextColumn(name, alignment="right" if name in _FORMS else "left")
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


def list_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """One row a trajectory, all cells text; what is unseen in texts of a file is made visible.

    What is known of no trajectory has no column, success aside.
    """
    cells = pd.DataFrame([_cells(row) for row in rows.to_dict("records")], columns=list(_COLUMNS))
    unknown = [name for name in cells if cells[name].isin([None, UNKNOWN]).all()]
    return cells.drop(columns=[name for name in unknown if name != "success"])


def _cells(row: Mapping[Any, Any]) -> dict[str, str | None]:
    dropped, excerpt = row["drop_reason"], row.get("excerpt")
    numbers = {name: _number(row[column], form) for name, (column, form) in _FORMS.items()}
    if not row["num_sampled_tokens"]:  # a reply has a token at least: 0 means that nobody counted
        numbers["tokens"] = None
    return numbers | {
        "id": visible(str(row["id"]), 80),
        "success": success_word(row["is_success"]),
        "match": visible(excerpt, 120) if isinstance(excerpt, str) else None,
        "update": kept_word(row["kept"], row["split"]),
        "ended by": visible(str(row["stop_reason"]), 60),
        "dropped because": visible(dropped, 200) if isinstance(dropped, str) else None,
        "tag": visible(str(row["tag"]), 80),
    }


def _number(value: Any, form: str) -> str | None:
    return None if value is None or pd.isna(value) else form.format(value)
