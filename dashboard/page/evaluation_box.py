"""What the pages about a training show of an evaluation: that it is one, and where to look."""

from __future__ import annotations

import shlex
from pathlib import Path

import streamlit as st

from echoscope.diagnostics.tools.stored_outcomes import evaluation_words
from echoscope.store.log.layout import shown_path
from echoscope.store.status import RUNNING, Origin, origin_of

from ..data import queries
from ..data.evaluations import played_by
from ..escaping import visible
from . import links, ui


def is_evaluation(run_id: str) -> bool:
    return origin_of(queries.info(run_id).config) is Origin.EVALUATED


def evaluation_box(run_id: str) -> bool:
    """In place of a page about a training: what the run is instead. False for a training."""
    if not is_evaluation(run_id):
        return False
    ui.part("evaluation", run_id, ("position", "status"), lambda: _box(run_id))
    return True


def _box(run_id: str) -> None:
    played, info = played_by(run_id), queries.info(run_id)
    with st.container(border=True, key="evaluation_box"):
        st.text(visible(f"This is {evaluation_words(played.plan)}.", 600))
        st.text(f"{played.progress} episodes were played.")
        command = "" if played.is_whole else resume_command(info.status, info.path)
        if command:
            st.caption("This plays the rest:")
            ui.command(command)
        with st.container(horizontal=True):
            links.link("Evaluations", "evaluations", run=run_id)
            links.link("Replay", "replay", run=run_id)


def resume_command(status: str, path: Path) -> str:
    """What plays the rest of an evaluation that ended early; empty while it is played."""
    if status == RUNNING:
        return ""
    return f"echoscope eval --resume {shlex.quote(shown_path(path))}"
