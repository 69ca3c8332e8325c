"""What a table on a page shows, for tests that draw pages without a browser."""

from __future__ import annotations

from typing import Any

from streamlit.testing.v1 import AppTest

from echoscope.dashboard.replay.listing import EPISODE, EPISODE_OF_SEARCH


def columns_of(page: AppTest) -> dict[str, list[Any]]:
    """Cells of the table of runs or of episodes, by the name of their column."""
    (table,) = [t.value for t in page.dataframe if _FIRST & set(list(t.value)[:4])]
    return {name: [_plain(cell) for cell in table[name]] for name in table.columns}


_FIRST = {"run", EPISODE, EPISODE_OF_SEARCH}
"""A name among the first columns of such a table, and of no other."""


def _plain(cell: Any) -> Any:
    return cell.tolist() if hasattr(cell, "tolist") else cell
