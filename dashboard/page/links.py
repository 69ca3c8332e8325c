"""Links between the pages: each carries the run, and names what of it is to be looked at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode

import streamlit as st
from streamlit.errors import StreamlitAPIException

from ..words import plain

PAGES: Mapping[str, tuple[str, str]] = {
    "runs": ("Runs", "views/runs.py"),
    "live": ("Live", "views/live.py"),
    "diagnosis": ("Diagnosis", "views/diagnosis.py"),
    "replay": ("Replay", "views/replay.py"),
    "compare": ("Compare", "views/compare.py"),
    "evaluations": ("Evaluations", "views/evaluations.py"),
    "panels": ("Panels", "views/panels.py"),
    "system": ("System", "views/system.py"),
    "sql": ("SQL", "views/sql.py"),
    "cure": ("Cure", "views/cure.py"),
}
"""URL path -> title and script, in the order of the menu."""
FRONT_PAGE = "runs"
UNLISTED = frozenset({"cure"})
"""Pages that the menu does not have: one comes to them from another page."""
HERE = Path(__file__).parents[1]


def link(label: str, page: str, **params: object) -> None:
    """A link to one of PAGES that carries the run; another one, or None, in its place."""
    query = link_params(**params)
    title = PAGES[page][0]
    try:
        st.page_link(script(page), label=plain(label or title), query_params=query)
    except StreamlitAPIException:  # this page runs by itself, without the menu
        st.markdown(f"[{plain(label or title)}]({url(page, **params)})")


def script(page: str) -> Path:
    """The script of one of PAGES, as `st.switch_page` takes it."""
    return HERE / PAGES[page][1]


def link_params(**params: object) -> dict[str, str]:
    """The URL parameters of a link: the run of this page, with `params` over it."""
    chosen = {"run": st.query_params.get("run"), **params}
    return {name: str(value) for name, value in chosen.items() if value not in (None, "")}


def url(page: str, **params: object) -> str:
    """The same as text, relative to the page one is on: for tables of links."""
    path = "" if page == FRONT_PAGE else page
    return f"/{path}?{urlencode(link_params(**params))}"
