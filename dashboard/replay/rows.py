"""The list of the replay as rows of a table: which columns, and how each value is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ..escaping import visible
from ..page.table import Column, Row
from .list import kept_word, success_word

Extra = Sequence[tuple[str, str]]
"""(column, heading) of what a source knows besides."""
_NUMBERS = {"change": "{:+.3g}"}
_COLUMNS = (
    Column(name="return", label="return", kind="number"),
    Column(name="success", label="success"),
    Column(name="advantage", label="advantage", kind="number"),
    Column(name="update", label="update"),
    Column(name="turns", label="turns", kind="number"),
    Column(name="tokens", label="tokens", kind="number"),
    Column(name="ended", label="ended by"),
    Column(name="dropped", label="dropped because"),
    Column(name="group", label="group", kind="number"),
    Column(name="tag", label="tag"),
)


def list_columns(extra: Extra = ()) -> list[Column]:
    """The columns; those of `extra` behind return and success, which every list leads with."""
    more = [
        Column(name=name, label=label, kind="number" if name in _NUMBERS else "text")
        for name, label in extra
    ]
    return [Column(name="id", label="id"), *_COLUMNS[:2], *more, *_COLUMNS[2:]]


def list_rows(rows: pd.DataFrame, extra: Extra = ()) -> list[Row]:
    """One row a trajectory; texts of a file with what is unseen made visible."""
    records = [{str(k): v for k, v in row.items()} for row in rows.to_dict("records")]
    return [Row(id=str(row["id"]), cells=_cells(row, extra)) for row in records]


def _cells(row: Mapping[str, Any], extra: Extra) -> dict[str, str | None]:
    dropped = row["drop_reason"]
    cells = {
        "id": visible(str(row["id"]), 80),
        "return": _number(row["episode_return"], "{:.3g}"),
        "success": success_word(row["is_success"]),
        "advantage": _number(row["advantage"], "{:+.2f}"),
        "update": kept_word(row["kept"], row["split"]),
        "turns": _number(row["num_turns"], "{:.0f}"),
        "tokens": _number(row["num_sampled_tokens"], "{:,.0f}"),
        "ended": visible(str(row["stop_reason"]), 60),
        "dropped": visible(dropped, 200) if isinstance(dropped, str) else None,
        "group": _number(row["group_index"], "{:.0f}"),
        "tag": visible(str(row["tag"]), 80),
    }
    for name, _ in extra:
        form = _NUMBERS.get(name)
        cells[name] = visible(str(row[name]), 120) if form is None else _number(row[name], form)
    return cells


def _number(value: Any, form: str) -> str | None:
    return None if value is None or pd.isna(value) else form.format(value)
