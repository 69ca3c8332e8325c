"""What a page of Streamlit's test runner says in words."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest

KINDS = ("text", "markdown", "caption", "code", "info", "warning", "error", "subheader")


def app_text(page: AppTest) -> str:
    """All text that a page shows outside tables and charts, an element a line."""
    assert not page.exception, page.exception
    return "\n".join(str(element.value) for kind in KINDS for element in page.get(kind))


def app_html(page: AppTest) -> str:
    """The HTML that a page shows beside its text."""
    return "\n".join(element.proto.body for element in page.get("html"))
