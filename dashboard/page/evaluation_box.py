"""What the pages about a training show of an evaluation: that it is one, and where to look."""

from __future__ import annotations

import shlex

import streamlit as st

from echoscope.diagnostics.tools.stored_outcomes import evaluation_words
from echoscope.store.log.layout import shown_path
from echoscope.store.query.listing import RunRow
from echoscope.store.status import RUNNING, Origin, origin_of

from ..data import queries
from ..data.evaluations import played_by
from ..escaping import visible
from ..live.refreshing import follow, guarded
from . import links, ui


def is_evaluation(run_id: str) -> bool:
    return origin_of(queries.info(run_id).config) is Origin.EVALUATED


def evaluation_box(run_id: str) -> bool:
    """In place of a page about a training: what the run is instead. False for a training."""
    if not is_evaluation(run_id):
        return False
    if ui.is_following(run_id):
        follow("evaluation", run_id, ("position", "status"), lambda: _box(run_id))
    else:
        guarded(lambda: _box(run_id))
    return True


def _box(run_id: str) -> None:
    row = next(row for row in queries.runs() if row.run_id == run_id)
    played = played_by(row)
    with st.container(border=True, key="evaluation_box"):
        st.text(visible(f"This is {evaluation_words(played.plan)}.", 600))
        st.text(f"{played.progress} episodes were played.")
        command = "" if played.is_whole else resume_command(row)
        if command:
            st.caption("This plays the rest:")
            ui.command(command)
        with st.container(horizontal=True):
            links.link("Evaluations", "evaluations", run=run_id)
            links.link("Replay", "replay", run=run_id)


def resume_command(row: RunRow) -> str:
    """What plays the rest of an evaluation that ended early; empty while it is played."""
    if row.status == RUNNING:
        return ""
    return f"echoscope eval --resume {shlex.quote(shown_path(row.path))}"
