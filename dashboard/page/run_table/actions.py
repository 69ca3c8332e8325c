"""What can be done with the ticked runs: open, compare, tag, pin, note."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import streamlit as st

from echoscope.dashboard.data.run_table.table import RunsTable
from echoscope.store.query.listing import RunRow
from echoscope.store.status import Origin
from echoscope.store.steer.annotations import AddTag, Change, Pin, RemoveTag, SetNote, annotate
from echoscope.store.steer.steering import MAX_AUTHOR, os_user

from ...data import queries
from ...escaping import digest_of, visible
from ...web.settings import settings
from .. import links, ui
from . import state

MAX_COMPARED, _MAX_ADDRESS = 500, 30_000
"""Runs that the page Compare takes, and characters of their names that fit into an address."""
MAX_BESIDE = 6
"""Ticked runs that the page Panels takes from here."""


def pages_of(row: RunRow) -> tuple[str, ...]:
    """The pages about a run, the first one first."""
    if row.origin is Origin.EVALUATED:
        return "evaluations", "replay"
    return "live", "diagnosis", "replay"


def draw(table: RunsTable, hits: Sequence[int], page_rows: Sequence[int]) -> None:
    """The box of the ticked runs; nothing where none is ticked.

    Args:
        hits: Rows that the filter lets through.
        page_rows: Those of this page.
    """
    names = set(state.ticked())
    places = [n for n, row in enumerate(table.rows) if row.run_id in names]
    rows = [table.rows[n] for n in places]
    if not rows:
        return
    ids = [row.run_id for row in rows]
    with st.container(border=True):
        line = st.container(horizontal=True, vertical_alignment="center")
        with line:
            others = [table.rows[n].run_id for n in hits if table.rows[n].run_id not in names]
            hidden = len(rows) + len(others) - len(hits)
            beside = f", {hidden} of them outside of the filter" if hidden else ""
            st.text(f"{len(rows)} ticked{beside}" if len(rows) > 1 else visible(ids[0]))
            if len(rows) == 1:
                for page in pages_of(rows[0]):
                    links.link("", page, run=ids[0])
            else:
                ends = itertools.accumulate(len(run_id) + 1 for run_id in ids[:MAX_COMPARED])
                num_compared = sum(end <= _MAX_ADDRESS for end in ends)
                _of_first("compare", ids, num_compared)
                _of_first("panels", ids, MAX_BESIDE)
            if others and names.issuperset(table.rows[n].run_id for n in page_rows):
                st.button(
                    f"Tick all {len(hits):,}", on_click=_tick_all, args=(others,), type="tertiary"
                )
            st.button("Untick all", on_click=state.untick_all, type="tertiary")
        if settings().is_read_only:
            st.caption("This dashboard is read-only: tags, pins and notes cannot be changed.")
        else:
            _notes(rows)


def _of_first(page: str, ids: Sequence[str], most: int) -> None:
    """A link to a page about some runs, which says of how many of them it is."""
    part = f" {most:,} of {len(ids):,}" if len(ids) > most else ""
    links.link(f"{links.PAGES[page]}{part}", page, runs=",".join(ids[:most]), run=ids[0])


def _tick_all(run_ids: Sequence[str]) -> None:
    state.tick(run_ids, is_on=True)
    state.new_generation()


def _notes(rows: Sequence[RunRow]) -> None:
    """Tags, pin and note of the ticked runs."""
    only_row = rows[0] if len(rows) == 1 else None
    mark = digest_of(*(row.run_id for row in rows))
    with st.form(f"notes-{mark}", border=False):
        left, middle, right = st.columns([5, 7, 4], vertical_alignment="bottom")
        shared = [t for t in rows[0].noted_tags if all(t in row.noted_tags for row in rows)]
        tags = left.multiselect(
            "Tags", shared, default=shared, accept_new_options=True, max_selections=32
        )
        note = middle.text_input("Note", value=only_row.note if only_row else "", max_chars=1000)
        is_pinned = right.checkbox("Pinned", value=all(row.is_pinned for row in rows))
        if st.form_submit_button("Save"):
            for row in rows:
                changes = note_changes(
                    row, shared, tags, note if only_row or note else None, is_pinned
                )
                if changes and not ui.noting(partial(annotate, row.path, *changes)):
                    return
            queries.look_again_at_runs()
            st.rerun()


def note_changes(
    row: RunRow, before: Sequence[str], tags: Sequence[str], note: str | None, is_pinned: bool
) -> list[Change]:
    """What must be noted so that a run has these tags, this note (None: its own) and this pin.

    Raises:
        AnnotationError: a tag or the note is not fit to be kept.
    """
    author = f"{os_user()} (dashboard)"[:MAX_AUTHOR]
    who: dict[str, Any] = {"author": author, "at": time.time()}
    new_tags = [tag.strip() for tag in tags]
    changes: list[Change] = [AddTag(tag=tag, **who) for tag in new_tags if tag not in row.tags]
    changes += [RemoveTag(tag=tag, **who) for tag in before if tag not in new_tags]
    if note is not None and note != row.note:
        changes.append(SetNote(note=note, **who))
    if is_pinned != row.is_pinned:
        changes.append(Pin(is_pinned=is_pinned, **who))
    return changes
