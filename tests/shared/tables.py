"""What a table on a page shows, for tests that draw pages without a browser."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest


def columns_of(page: AppTest) -> dict[str, list[Any]]:
    """Cells of the table of runs or of trajectories, by the name of their column."""
    (table,) = [t.value for t in page.dataframe if {"run", "id"} & set(list(t.value)[:4])]
    return {name: [_plain(cell) for cell in table[name]] for name in table.columns}


def _plain(cell: Any) -> Any:
    return cell.tolist() if hasattr(cell, "tolist") else cell
