"""Labels and notes of episodes: how a person gives them, and how labelled episodes leave."""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import streamlit as st

from echoscope.store.errors import StoreError
from echoscope.store.exporters.exporting import export_run
from echoscope.store.exporters.format import Options
from echoscope.store.log.layout import Layout
from echoscope.store.steer.annotation_file import MAX_LABEL_CHARS, MAX_NOTE_CHARS
from echoscope.store.steer.episode_notes import (
    MAX_LABELS,
    AddLabel,
    EpisodeChange,
    EpisodeKey,
    EpisodeNotes,
    RemoveLabel,
    SetEpisodeNote,
    note_episodes,
    read_episode_notes,
)
from echoscope.store.steer.steering import MAX_AUTHOR, os_user

from ..data import queries
from ..escaping import visible
from ..web.settings import settings
from ..words import plain

_NOTHING_NOTED = EpisodeNotes()
_PROBLEM = "_episode_notes_problem"
"""Session state: (episode, why its last change was not noted)."""
FORMATS = {"sft": "Conversations (SFT)", "messages": "Messages with labels and rewards"}
"""What labelled episodes can be exported as from the page."""


def of_run(run_id: str) -> EpisodeNotes:
    """What people noted about the run's episodes: the same object until somebody notes more.

    Raises:
        Problem: the file cannot be read.
    """
    path = queries.path_of(run_id)
    with queries.reading(run_id):
        try:
            state = os.stat(Layout(path).episode_notes)
        except FileNotFoundError:
            return _NOTHING_NOTED
        return _read(path, (state.st_ino, state.st_mtime_ns, state.st_size))


@functools.lru_cache(maxsize=8)
def _read(path: Path, _identity: tuple[int, int, int]) -> EpisodeNotes:
    return read_episode_notes(path)


def editor(run_id: str, key: EpisodeKey, notes: EpisodeNotes) -> None:
    """Fields for the labels and the note of an episode; what is changed is noted at once."""
    noted = notes.of(*key)
    if settings().is_read_only:
        st.caption("This dashboard is read-only: labels and notes cannot be changed.")
        if noted.note:
            st.text(visible(noted.note))
        return
    labels_key, note_key = (f"replay_{name}_{key[0]}_{key[1]}" for name in ("labels", "note"))
    # Always what is noted, by whomever: a change is told from what was shown.
    st.session_state[labels_key] = list(noted.labels)
    st.session_state[note_key] = noted.note
    st.multiselect(
        "Labels",
        list(dict.fromkeys((*noted.labels, *notes.labels))),
        key=labels_key,
        accept_new_options=True,
        max_selections=MAX_LABELS,
        placeholder="Choose a label or type a new one",
        on_change=_keep_labels,
        args=(run_id, key, noted.labels, labels_key),
    )
    st.text_area(
        "Note",
        key=note_key,
        max_chars=MAX_NOTE_CHARS,
        on_change=lambda: _keep(
            run_id, key, partial(SetEpisodeNote, note=st.session_state[note_key])
        ),
    )
    episode, problem = st.session_state.pop(_PROBLEM, (None, ""))
    if episode == key:
        st.error(plain(problem, 400))


def _keep_labels(run_id: str, key: EpisodeKey, present: Sequence[str], widget: str) -> None:
    given = [label.strip() for label in st.session_state[widget]]
    added = [label for label in given if label not in present]
    removed = [label for label in present if label not in given]
    _keep(
        run_id,
        key,
        *(partial(RemoveLabel, label=label) for label in removed),
        *(partial(AddLabel, label=label[: MAX_LABEL_CHARS + 1]) for label in added),
    )


def _keep(run_id: str, key: EpisodeKey, *changes: Callable[..., EpisodeChange]) -> None:
    """Note changes of an episode; why it was not done is said where it was asked for."""
    if settings().is_read_only:  # a page that was drawn before, or a browser that sends anything
        return
    author = f"{os_user()} (dashboard)"[:MAX_AUTHOR]
    who = {"author": author, "at": time.time(), "attempt": key[0], "episode": key[1]}
    try:
        note_episodes(queries.path_of(run_id), *(change(**who) for change in changes))
    except (StoreError, ValueError) as error:
        st.session_state[_PROBLEM] = (key, str(error))


def export(run_id: str, label: str) -> None:
    """A button for a file of the episodes with a label."""
    form = st.selectbox(
        "Export as", list(FORMATS), format_func=FORMATS.__getitem__, key="replay_export_as"
    )
    st.download_button(
        "Export labelled episodes",
        functools.partial(exported, queries.path_of(run_id), str(form), label),
        file_name=f"{form}.jsonl",
        mime="application/jsonl",
        on_click="ignore",
        help=f"echoscope export RUN --to {form} --label ...",
    )


def exported(run: Path, form: str, label: str) -> bytes:
    """The episodes with a label as JSON lines.

    Raises:
        ExportError: none of them can be exported.
    """
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / f"{form}.jsonl"
        export_run(run, form, target, Options(labels=(label,), split="all"))
        return target.read_bytes()
