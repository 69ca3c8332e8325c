"""Links between the pages: each carries the run, and names what of it is to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from streamlit.errors import StreamlitAPIException

from ..words import plain

PAGES: Mapping[str, str] = {
    "runs": "Runs",
    "live": "Live",
    "diagnosis": "Diagnosis",
    "replay": "Replay",
    "compare": "Compare",
    "evaluations": "Evaluations",
    "panels": "Panels",
    "system": "System",
    "sql": "SQL",
    "cure": "Cure",
}
"""URL path, which is the name of a script in `views`, too -> title, in the order of the menu."""
FRONT_PAGE = "runs"
UNLISTED = frozenset({"cure"})
"""Pages that the menu does not have: one comes to them from another page."""


def link(label: str, page: str, **params: object) -> None:
    """A link to one of PAGES that carries the run; another one, or None, in its place."""
    text = plain(label or PAGES[page])
    try:
        st.page_link(script(page), label=text, query_params=link_params(**params))
    except StreamlitAPIException:  # this page runs by itself, without the menu
        st.markdown(f"[{text}]({url(page, **params)})")


def script(page: str) -> Path:
    """The script of one of PAGES, as `st.switch_page` takes it."""
    return Path(__file__).parents[1] / "views" / f"{page}.py"


def link_params(**params: object) -> dict[str, str]:
    """The URL parameters of a link: the run of this page, with `params` over it."""
    chosen = {"run": st.query_params.get("run"), **params}
    return {name: str(value) for name, value in chosen.items() if value not in (None, "")}


def url(page: str, **params: object) -> str:
    """The same as text, relative to the page one is on: for tables of links."""
    path = "" if page == FRONT_PAGE else page
    return f"/{path}?{urlencode(link_params(**params))}"
