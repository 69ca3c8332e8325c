"""Files of other trainers on the page Runs: what they are, and a click that makes a run of them."""

from __future__ import annotations

from collections.abc import Sequence

import streamlit as st

from echoscope.store.query.listing import RunRow
from echoscope.store.status import RUNNING
from echoscope.store.steer.steering import SteeringError
from echoscope.text.amounts import counted, data_size

from ..data import queries
from ..data.foreign import ForeignSource
from ..escaping import digest_of, visible
from ..steer import importing
from ..steer.importing import Import, ImportProgress
from ..web.settings import settings
from ..words import plain
from . import links
from .problems import Problem

MAX_SHOWN = 30


def draw() -> None:
    """All sources, each with what can be done with it."""
    sources = [source for source in queries.foreign_sources() if source.is_known or source.problem]
    if not sources:
        return
    try:
        rows = queries.runs()
    except Problem:  # the root comes into being with its first run
        rows = []
    begin_given(sources, rows)
    st.subheader("Files of other trainers", anchor=False)
    if settings().is_read_only:
        st.caption("This dashboard is read-only: nothing is imported from here.")
    for source in sources[:MAX_SHOWN]:
        _source(source, rows)
    if len(sources) > MAX_SHOWN:
        st.caption(f"{len(sources) - MAX_SHOWN} more are not shown.")


def has_sources() -> bool:
    """Whether there is anything that can become a run."""
    return any(source.is_known for source in queries.foreign_sources())


def fingerprint() -> tuple[object, ...]:
    """Changes when the page has to be drawn again: a source appeared, an import began or ended."""
    sources = tuple((str(source.path), source.is_known) for source in queries.foreign_sources())
    return sources, importing.is_importing()


def begin_given(sources: Sequence[ForeignSource], rows: Sequence[RunRow]) -> None:
    """Import what the command line named: who types a path asks for it."""
    for source in sources:
        is_given = source.path in settings().sources and source.is_known
        if is_given and importing.import_of(source) is None and not settings().is_read_only:
            row = importing.run_of(source, rows)
            if row is None or _is_to_be_imported(source, row):
                _start(source, row)


def _source(source: ForeignSource, rows: Sequence[RunRow]) -> None:
    key = digest_of(source.path, size=8)
    with st.container(border=True, key=f"foreign_{key}", gap="small"):
        line = st.container(horizontal=True, vertical_alignment="center")
        line.text(visible(source.path.name, 120))
        row = importing.run_of(source, rows)
        line.caption(plain(words_of(source, row), 600))
        begun = importing.import_of(source)
        report = None if begun is None else begun.report()
        if begun is not None and report is not None and not report.is_done:
            _progress(begun, report, key)
        elif not source.problem:
            with line:
                _ways(source, row, key)
            if report is not None:
                _outcome(report)


def _outcome(report: ImportProgress) -> None:
    if report.problem:
        st.error(plain(report.problem, 1_000))
        return
    with st.expander("What was imported, guessed and skipped"):
        for sentence in report.sentences:
            st.text(visible(sentence, 500))


def words_of(source: ForeignSource, row: RunRow | None) -> str:
    """What a source is, and whether a run was made of it.

    >>> from pathlib import Path
    >>> source = ForeignSource(path=Path("x"), has_rollouts=True, num_files=12, num_bytes=3_100_000)
    >>> words_of(source, None)
    'rollouts, 12 files, 3.1 MB, not imported yet'
    """
    if source.problem:
        return source.problem
    kinds = ["rollouts"] * source.has_rollouts + ["metrics"] * source.has_metrics
    if row is None:
        state = "not imported yet"
    elif _is_to_be_imported(source, row):
        state = f"imported only in part as the run {row.run_id}"
    else:
        state = f"imported as the run {row.run_id}"
    files = counted(source.num_files, "file")
    return f"{' and '.join(kinds)}, {files}, {data_size(source.num_bytes)}, {state}"


def _is_to_be_imported(source: ForeignSource, row: RunRow) -> bool:
    """Whether the import was stopped, or files were written since then."""
    return row.status not in ("finished", RUNNING) or source.newest > row.updated_at


def _ways(source: ForeignSource, row: RunRow | None, key: str) -> None:
    """A link to the run, and the button that makes it or brings it up to date."""
    if row is not None and not row.problem:
        links.link("Open the run", "live", run=row.run_id, step=None, trajectory=None, turn=None)
    if settings().is_read_only or not (row is None or _is_to_be_imported(source, row)):
        return
    name = importing.new_name(source, settings().root) if row is None else row.run_id
    if st.button("Import", key=f"open_{key}", help=plain(f"Imports it as the run {name}.", 300)):
        _start(source, row)
        st.rerun()


def _start(source: ForeignSource, row: RunRow | None) -> None:
    root = settings().root
    name = importing.new_name(source, root) if row is None else row.run_id
    try:
        importing.start(source, name, root)
    except SteeringError as error:
        st.error(plain(str(error), 400))


def _progress(begun: Import, report: ImportProgress, key: str) -> None:
    left, right = st.columns([8, 1], vertical_alignment="center")
    sentence = plain(f"Import into the run {begun.run_id}: {report.stage}", 300)
    left.progress(0.0 if report.share is None else report.share, text=sentence)
    if right.button("Cancel", key=f"cancel_{key}", help="Ends the import. Import continues it."):
        begun.stop()
        st.rerun()
