"""Where a run branched off, and what branched off from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.store.reader import RunInfo
from echoscope.store.status import after_step

from ..data import queries
from ..escaping import visible
from ..words import plain
from . import ui, url_state

MAX_BRANCHES = 5
"""Branches of a run that its page links."""


def lineage(run_id: str) -> None:
    """Where a run branched off, and what branched off from it; nothing for most runs."""
    info = queries.info(run_id)
    if info.parent_run_id:
        row = _row(_origin_words(info))
        if ui.exists(info.parent_run_id):
            with row:
                open_button("Open that run", info.parent_run_id)
    children = [row.run_id for row in queries.runs() if row.parent_run_id == run_id]
    if children:
        with _row("Branches of this run:" if len(children) > 1 else "Branch of this run:"):
            for child in children[:MAX_BRANCHES]:
                open_button(child, child)
            if len(children) > MAX_BRANCHES:
                st.caption(f"and {len(children) - MAX_BRANCHES} more")


def open_button(label: str, run_id: str) -> None:
    """Shows another run on this page: a link to the page that one is on would do nothing."""
    if st.button(plain(label), key=f"open:{label}:{run_id}", type="tertiary"):
        url_state.go(run=run_id, step=None, trajectory=None, turn=None)
        st.rerun()


def _origin_words(info: RunInfo) -> str:
    entry = info.config.get("branched_from")
    origin: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    when = f" {after_step(origin['step'])}" if isinstance(origin.get("step"), int) else ""
    who = f" by {origin['issued_by']}" if origin.get("issued_by") else ""
    why = f": {origin['reason']}" if origin.get("reason") else ""
    return f"Branched from {info.parent_run_id}{when}{who}{why}"


def _row(text: str) -> DeltaGenerator:
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.text(visible(text, 500))
    return row
