"""What `dashboard/page/table.py` shows on a page that a test drew."""

from __future__ import annotations

import json
from typing import Any

from streamlit.testing.v1 import AppTest


def table_data(page: AppTest) -> dict[str, Any]:
    """What the browser is told about the table of the page."""
    found = [e.proto for e in page.get("bidi_component")]
    (table,) = [proto for proto in found if proto.component_name == "echoscope_table"]
    data: dict[str, Any] = json.loads(table.json)
    return data


def columns_of(page: AppTest) -> dict[str, list[Any]]:
    """Cells of the table by the name of their column, row by row."""
    data = table_data(page)
    rows = [row["cells"] for row in data["rows"]]
    return {c["name"]: [row[at] for row in rows] for at, c in enumerate(data["columns"])}
