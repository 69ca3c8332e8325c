"""Where a run branched off, and what branched off from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from ..store.reader import RunInfo
from . import queries, ui
from .escaping import visible

MAX_BRANCHES = 5
"""Branches of a run that its page links."""


def lineage(run_id: str) -> None:
    """Where a run branched off, and what branched off from it, as links; nothing for most runs."""
    info = queries.info(run_id)
    if info.parent_run_id:
        parent_line(_origin_words(info), info.parent_run_id)
    children = [row.run_id for row in queries.runs() if row.parent_run_id == run_id]
    for child in children[:MAX_BRANCHES]:
        _run_line("Branch of this run:", child, child)


def _origin_words(info: RunInfo) -> str:
    entry = info.config.get("branched_from")
    found: Mapping[str, Any] = entry if isinstance(entry, Mapping) else {}
    at = f" at step {found['step']}" if isinstance(found.get("step"), int) else ""
    who = f" by {found['issued_by']}" if found.get("issued_by") else ""
    why = f": {found['reason']}" if found.get("reason") else ""
    return f"Branched from {info.parent_run_id}{at}{who}{why}"


def parent_line(text: str, run_id: str) -> None:
    """Words about a run's parent, with a link where it lies under the same root."""
    _run_line(text, run_id, "Open that run")


def _run_line(text: str, run_id: str, label: str) -> None:
    row = st.container(horizontal=True, vertical_alignment="center", gap="small")
    row.text(visible(text, 500))
    try:
        queries.path_of(run_id)
    except queries.Problem:
        return  # it lies under another root, or is gone
    with row:
        ui.link(label, "live", run=run_id, step=None, trajectory=None, turn=None)
