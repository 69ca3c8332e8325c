"""Runs: every run under the root, to find, open, tag, pin and compare."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import foreign_box, lineage, links, ui
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.runs_table import SORTS, branched_from, note_changes, tick_table
from echoscope.dashboard.steer import importing
from echoscope.dashboard.web.settings import settings
from echoscope.store.query.listing import RunRow
from echoscope.store.status import Origin
from echoscope.store.steer.annotations import Change, annotate

PER_PAGE = 25
EVERY_S = 5.0
WAITING_S = 1.0
_WAITING = "_runs_waiting"
"""Session state: verdicts of the page are being worked out."""


def draw() -> None:
    try:
        all_rows = queries.runs()
    except Problem:  # the root is not there yet, perhaps
        all_rows = []
    if not all_rows:
        beat("no_runs", EVERY_S, _no_runs, has_news=lambda: bool(queries.runs()))
        _foreign()
        return
    left, right = st.columns([6, 2], vertical_alignment="bottom")
    pattern = left.text_input(
        "Filter",
        key="filter",
        bind="query-params",
        placeholder="Regular expression over name, environment, algorithm, status, tags and note",
        type="search",
        max_chars=500,
    )
    sort = right.selectbox("Sort by", list(SORTS), key="sort", bind="query-params")
    is_waiting = st.session_state.get(_WAITING, True)

    def part() -> None:
        st.session_state[_WAITING] = False
        st.session_state[_WAITING] = _list(pattern or "", sort or "newest")

    beside = _beside(all_rows)

    def has_news() -> bool:
        is_complete = is_waiting and not st.session_state[_WAITING]
        return is_complete or _beside(queries.runs()) != beside

    # Once all verdicts are there, the page goes on at a slower beat: a run may start at any time.
    beat("runs", WAITING_S if is_waiting else EVERY_S, part, has_news=has_news)
    _foreign()
    _broken([row for row in all_rows if row.problem])


def _no_runs() -> None:
    queries.runs()  # what is wrong with the root is said in its words
    if foreign_box.has_sources():
        ui.empty(f"There are no runs under {settings().root} yet. The files below become runs.")
    else:
        ui.empty_root()


def _beside(rows: Sequence[RunRow]) -> tuple[object, ...]:
    """What the page shows besides the list: it changes when the whole page has to be drawn."""
    broken = tuple((row.run_id, row.problem) for row in rows if row.problem)
    return bool(rows), broken


def _list(pattern: str, sort: str) -> bool:
    """Draw the runs that match; whether there is more to come of those that are shown."""
    rows = [row for row in queries.runs(pattern) if not row.problem]
    order = SORTS[sort]
    rows.sort(key=lambda row: (not row.is_pinned, order(row)))
    if not rows:
        ui.empty("No run matches the filter.")
        return False
    num_pages = -(-len(rows) // PER_PAGE)
    table = st.container()
    page = 1
    if num_pages > 1:
        with st.container(horizontal=True, vertical_alignment="center"):
            page = st.pagination(num_pages, key="page", bind="query-params")
            st.caption(f"{len(rows):,} runs")
    page_rows = rows[(page - 1) * PER_PAGE : page * PER_PAGE]
    with table:
        picked = tick_table(page_rows, key="run_table")
        if picked.opened:
            row = next(row for row in page_rows if row.run_id == picked.opened)
            st.switch_page(links.script(_pages_of(row)[0]), query_params={"run": picked.opened})
        st.caption("Click a run's name to open it. Tick runs to compare, tag, pin or note them.")
    _actions([row for row in page_rows if row.run_id in picked.ticked])
    return any(queries.is_judging(row.run_id) for row in page_rows)


def _pages_of(row: RunRow) -> tuple[str, ...]:
    """The pages about a run, the first one first."""
    if row.origin is Origin.EVALUATED:
        return "evaluations", "replay"
    return "live", "diagnosis", "replay"


def _actions(rows: Sequence[RunRow]) -> None:
    """What can be done with the ticked runs."""
    if not rows:
        return
    ids = [row.run_id for row in rows]
    with st.container(border=True):
        line = st.container(horizontal=True, vertical_alignment="center")
        with line:
            st.text(f"{len(rows)} ticked" if len(rows) > 1 else visible(ids[0]))
            if len(rows) > 1:
                links.link("Compare", "compare", runs=",".join(ids), run=ids[0])
            else:
                for page in _pages_of(rows[0]):
                    links.link("", page, run=ids[0])
        if len(rows) == 1 and rows[0].parent_run_id:
            lineage.parent_line(f"Branched from {branched_from(rows[0])}", rows[0].parent_run_id)
        if settings().is_read_only:
            st.caption("This dashboard is read-only: tags, pins and notes cannot be changed.")
        else:
            _notes(rows)


def _notes(rows: Sequence[RunRow]) -> None:
    """Tags, pin and note of the ticked runs."""
    only_row = rows[0] if len(rows) == 1 else None
    mark = "|".join(row.run_id for row in rows)
    with st.form(f"notes-{mark}", border=False):
        left, middle, right = st.columns([2, 3, 1], vertical_alignment="bottom")
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
                if changes and not ui.noting(_noter(row, changes)):
                    return
            queries.look_again_at_runs()
            st.rerun()


def _noter(row: RunRow, changes: Sequence[Change]) -> Callable[[], None]:
    return lambda: annotate(row.path, *changes)


def _broken(rows: Sequence[RunRow]) -> None:
    """Runs that cannot be opened, each with the reason."""
    if not rows:
        return
    with st.expander(f"{len(rows)} cannot be opened", expanded=len(rows) <= 3):
        frame = [
            {"folder": visible(r.run_id, 120), "why": visible(r.problem, 300)} for r in rows[:200]
        ]
        st.dataframe(pd.DataFrame(frame), hide_index=True)
        st.code(f"echoscope runs verify {visible(str(rows[0].path), 300)}", language="bash")


def _foreign() -> None:
    """What other trainers wrote below the root; drawn by itself, often while one is imported."""
    drawn = foreign_box.fingerprint()
    every_s = WAITING_S if importing.is_importing() else EVERY_S

    def has_news() -> bool:
        return foreign_box.fingerprint() != drawn

    beat("foreign", every_s, foreign_box.draw, has_news=has_news)


ui.frame("Runs", draw)
