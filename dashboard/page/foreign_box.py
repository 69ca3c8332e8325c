"""Files of other trainers on the page Runs: what they are, and a click that makes a run of them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import streamlit as st

from echoscope.store.query.listing import RunRow
from echoscope.store.status import RUNNING
from echoscope.text.amounts import counted, data_size

from ..data import queries
from ..data.foreign import MAX_READ, Source
from ..escaping import visible
from ..steer import importing
from ..steer.importing import Import, ImportRefusedError, ImportReport
from ..web.settings import settings
from ..words import plain
from . import links
from .problems import Problem

MAX_SHOWN = 30
ASKS_ABOVE = 64_000_000
"""Bytes from which on a click is confirmed."""
_ASKED = "_foreign_asked"
"""Session state: the source whose import waits for a confirmation."""


def draw() -> None:
    """All sources, each with what can be done with it."""
    try:
        rows = queries.runs()
    except Problem:  # the root comes into being with its first run
        rows = []
    everything = queries.foreign_sources()
    sources = [one for one in everything if one.is_known or one.problem]
    begin_given(sources, rows)
    _unknown([one for one in everything if one not in sources and one.path.is_dir()])
    if not sources:
        return
    st.subheader("Files of other trainers", anchor=False)
    if settings().is_read_only:
        st.caption("This dashboard is read-only: nothing is imported from here.")
    for source in sources[:MAX_SHOWN]:
        _source(source, rows)
    if len(sources) > MAX_SHOWN:
        st.caption(f"{len(sources) - MAX_SHOWN} more are not shown.")


def _unknown(sources: Sequence[Source]) -> None:
    """Folders in which a light look found nothing."""
    if not sources:
        return
    with st.expander(f"{counted(len(sources), 'other folder')} without recognised files"):
        st.text(visible(", ".join(one.path.name for one in sources[:50]), 1000))
        st.text(
            f"At most {MAX_READ} files of each folder were checked. Metrics files beside documents "
            "or code were left out, because they may be examples. To check all files of a folder:"
        )
        st.code("echoscope import FOLDER", language="bash")


def has_sources() -> bool:
    """Whether there is anything that can become a run."""
    return any(source.is_known for source in queries.foreign_sources())


def fingerprint() -> tuple[object, ...]:
    """Changes when the page has to be drawn again: a source appeared, an import began or ended."""
    known = tuple((str(one.path), one.is_known, one.runs) for one in queries.foreign_sources())
    return known, importing.is_importing()


def begin_given(sources: Sequence[Source], rows: Sequence[RunRow]) -> None:
    """Import what the command line named: who types a path asks for it."""
    given = settings().sources
    for source in sources:
        # Of several runs a person chooses one.
        is_new = source.path in given and source.is_known and not source.runs
        if is_new and importing.import_of(source) is None and not settings().is_read_only:
            row = importing.run_of(source, rows)
            if row is None or _is_unfinished(row) or _has_grown(source, row):
                _start(source, row, "")


def _source(source: Source, rows: Sequence[RunRow]) -> None:
    key = hashlib.blake2b(str(source.path).encode("utf-8", "replace"), digest_size=8).hexdigest()
    with st.container(border=True, key=f"foreign_{key}", gap="small"):
        line = st.container(horizontal=True, vertical_alignment="center")
        line.text(visible(source.path.name, 120))
        run = _choice(source, key) if source.runs and not source.problem else ""
        begun = importing.import_of(source, run)
        row = importing.run_of(source, rows, run)
        line.caption(plain(words_of(source, row), 600))
        if source.problem:
            return
        report = None if begun is None else begun.report()
        if begun is not None and report is not None and not report.is_done:
            _progress(begun, key)
            return
        with line:
            _ways(source, row, key, run)
        if st.session_state.get(_ASKED) == (str(source.path), run):
            _confirm(source, row, key, run)
        if report is not None:
            _outcome(report)


def _choice(source: Source, key: str) -> str:
    """Which of several runs the line is about."""
    chosen = st.selectbox(
        "Run",
        source.runs,
        key=f"run_{key}",
        format_func=lambda name: visible(name, 120),
        help="The files hold the metrics of several runs. Each is imported into a run of its own.",
    )
    return str(chosen)


def _outcome(report: ImportReport) -> None:
    """What an import did; that something was not taken stands in the open, the reasons below."""
    if report.problem:
        st.error(plain(report.problem, 1_000))
        return
    if left := left_words(report):
        st.warning(left)
    with st.expander("What was imported, guessed and skipped"):
        for sentence in report.sentences:
            st.text(visible(sentence, 500))


def left_words(report: ImportReport) -> str:
    """What an import did not take, in numbers; empty where it took everything.

    >>> left_words(ImportReport(is_done=True, num_refused=1, num_skipped=1_200))
    'Not imported: 1 file and 1200 rows. For the reasons, open the list below.'
    """
    counts = ((report.num_refused, "file"), (report.num_skipped, "row"))
    parts = [counted(number, noun) for number, noun in counts if number]
    if not parts:
        return ""
    return f"Not imported: {' and '.join(parts)}. For the reasons, open the list below."


def words_of(source: Source, row: RunRow | None) -> str:
    """What a source is, and whether a run was made of it.

    >>> from pathlib import Path
    >>> found = Source(path=Path("x"), format="verl JSONL", num_files=12, num_bytes=3_100_000)
    >>> words_of(found, None)
    'verl JSONL rollouts, 12 files, 3.1 MB, not imported yet'
    """
    if source.problem:
        return source.problem
    kinds = [f"{source.format} rollouts"] if source.format else []
    kinds += [f"metrics of {counted(len(source.runs), 'run')}"] if source.runs else []
    kinds += ["metrics"] if source.has_metrics and not source.runs else []
    more = "more than " if source.is_cut else ""
    files = f"{more}{counted(source.num_files, 'file')}, {data_size(source.num_bytes)}"
    if row is None:
        state = "not imported yet"
    elif _is_unfinished(row):
        state = f"imported only in part as the run {row.run_id}"
    elif _has_grown(source, row):
        state = f"changed since it was imported as the run {row.run_id}"
    else:
        state = f"imported as the run {row.run_id}"
    return f"{' and '.join(kinds)}, {files}, {state}"


def _is_unfinished(row: RunRow) -> bool:
    """Whether the import that made the run was stopped or failed."""
    return row.status not in ("finished", RUNNING)


def _has_grown(source: Source, row: RunRow) -> bool:
    """Whether files were written since the run was made of them."""
    begun = importing.import_of(source, row.source_run if source.runs else "")
    if begun is not None and begun.report().is_done and not begun.report().problem:
        return begun.source.extent != source.extent
    return source.newest > row.updated_at


def _ways(source: Source, row: RunRow | None, key: str, run: str) -> None:
    """A link to the run, and the button that makes it or brings it up to date."""
    if row is not None and not row.problem:
        links.link("Open the run", "live", run=row.run_id, step=None, trajectory=None, turn=None)
    if settings().is_read_only:
        return
    label = "Import"
    if row is not None and not _is_unfinished(row):
        if not _has_grown(source, row):
            return
        label = "Import what is new"
    name = importing.new_name(source, settings().root, run) if row is None else row.run_id
    if st.button(label, key=f"open_{key}", help=plain(f"Imports it as the run {name}.", 300)):
        if source.num_bytes > ASKS_ABOVE or source.is_cut:
            st.session_state[_ASKED] = str(source.path), run
        else:
            _start(source, row, run)
        st.rerun()


def _confirm(source: Source, row: RunRow | None, key: str, run: str) -> None:
    name = importing.new_name(source, settings().root, run) if row is None else row.run_id
    st.text(
        f"{data_size(source.num_bytes)} are read and stored as the run {visible(name, 120)} under "
        f"{visible(str(settings().root), 200)}. You can go on with other pages meanwhile."
    )
    with st.container(horizontal=True):
        is_wanted = st.button("Import", key=f"import_{key}", type="primary")
        if is_wanted:
            _start(source, row, run)
        if is_wanted or st.button("Not now", key=f"not_{key}"):
            st.session_state.pop(_ASKED, None)
            st.rerun()


def _start(source: Source, row: RunRow | None, run: str) -> None:
    root = settings().root
    name = importing.new_name(source, root, run) if row is None else row.run_id
    try:
        importing.start(source, name, root, run)
    except ImportRefusedError as error:
        st.error(plain(str(error), 400))


def _progress(begun: Import, key: str) -> None:
    report = begun.report()
    left, right = st.columns([8, 1], vertical_alignment="center")
    words = plain(f"Import into the run {begun.run_id}: {report.stage}", 300)
    left.progress(0.0 if report.share is None else report.share, text=words)
    if right.button("Cancel", key=f"cancel_{key}", help="Ends the import. Import continues it."):
        begun.stop()
        st.rerun()
