"""Runs: every run under the root, to find, open, tag, pin and compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts.compare import PALETTE, colors
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.run_table.condition import is_condition, parsed_condition
from echoscope.dashboard.data.run_table.facts import MOST_WAITED_FOR, Urgency
from echoscope.dashboard.data.run_table.groups import TableLine, grouped, ordered
from echoscope.dashboard.data.run_table.table import OF_VERDICTS, RootRuns, RunsTable, root_runs
from echoscope.dashboard.escaping import digest_of, visible
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import foreign_box, links, ui
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.run_table import actions, controls, curves, state
from echoscope.dashboard.page.run_table import table as run_table
from echoscope.dashboard.page.url_state import go
from echoscope.dashboard.steer import importing
from echoscope.dashboard.web.settings import settings
from echoscope.store.query.listing import RunRow
from echoscope.store.status import Origin

PER_PAGE = len(PALETTE)
"""Lines, each in a colour of its own."""
READ_AT_ONCE = 100
"""Runs of which a page reads the files itself, the newest; a thread reads the others."""
MAX_OPENED = 100
"""Runs that an open group lists."""
EVERY_S = 5.0
WAITING_S = 1.0
PATIENCE_S = 1.0
"""That a page waits for runs to be read, before it shows what there is."""
_STYLE = """<style>
[data-testid="stDataFrame"] .stElementToolbar { top: auto !important; bottom: -2.8rem; }
</style>"""
"""The table's own buttons come below it: above it they would cover the filter's."""
_WAITING = "_runs_waiting"
"""Session state: something of the page is still being read or judged."""


def draw(line: DeltaGenerator) -> None:
    try:
        all_rows = queries.runs(most=READ_AT_ONCE)
    except Problem:  # the root is not there yet, perhaps
        all_rows = []
    if not all_rows:
        beat("no_runs", EVERY_S, _no_runs, has_news=lambda: bool(queries.runs(most=1)))
        _foreign()
        return
    runs = root_runs()
    state.restore_address()
    controls.apply_view()
    st.html(_STYLE)
    rows = _readable(all_rows)
    num_unread = runs.facts.wait(rows, PATIENCE_S)
    table = runs.table(rows)
    controls.draw(line, table, state.asked(table))
    is_waiting = st.session_state.get(_WAITING, True)

    def part() -> None:
        st.session_state[_WAITING] = False
        st.session_state[_WAITING] = _list(runs)

    beside = _beside(all_rows)

    def has_news() -> bool:
        is_complete = is_waiting and not st.session_state[_WAITING]
        return is_complete or _beside(queries.runs(most=READ_AT_ONCE)) != beside

    # Once everything is read, the page goes on at a slower beat: a run may start at any time. While
    # thousands are read, too: to draw a table of all of them takes as long as reading hundreds.
    is_long = num_unread > MOST_WAITED_FOR
    every_s = EVERY_S if is_long or not is_waiting else WAITING_S
    beat("runs", every_s, part, has_news=has_news)
    _foreign()
    _broken([row for row in all_rows if row.problem])


def _readable(rows: Sequence[RunRow]) -> list[RunRow]:
    return [row for row in rows if not row.problem]


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


def _list(runs: RootRuns) -> bool:
    """Draw the runs that match; whether more is to come of what is shown."""
    state.keep_address()
    rows = _readable(queries.runs(most=READ_AT_ONCE))
    num_unread = runs.facts.wait(rows, PATIENCE_S)
    table = runs.table(rows)
    asked = state.asked(table)
    num_unjudged = _judge(runs, table, asked)
    _progress(num_unread, num_unjudged, len(rows))
    try:
        hits = table.filtered(asked.filter)
        lines, num_lines = _lines(table, hits, asked)
    except Problem as problem:
        ui.empty(f"{problem.text} {problem.advice}".strip())
        return num_unread > 0
    if not hits:
        ui.empty("No run matches the filter.")
        return num_unread > 0
    page_rows = [table.rows[n] for line in lines for n in line.rows[:PER_PAGE]]
    num_coming = num_unread + runs.facts.want_standings(page_rows, Urgency.SHOWN_VERDICT)
    beside = st.columns([9, 5], gap="small") if asked.curves else [st.container()]
    with beside[0]:
        opened = run_table.draw(table, lines, asked)
        _footer(num_lines, len(hits), len(rows), is_grouped=bool(asked.groups))
    if asked.curves:
        with beside[1]:
            num_coming += curves.draw(runs.facts, table, lines, asked, len(hits))
    with beside[-1]:  # in sight, and nothing moves when a run is ticked
        actions.draw(table, hits, [n for line in lines for n in line.rows])
    if opened:
        row = next(row for row in rows if row.run_id == opened)
        st.switch_page(links.script(actions.pages_of(row)[0]), query_params={"run": opened})
    return num_coming > 0


def _judge(runs: RootRuns, table: RunsTable, asked: state.TableRequest) -> int:
    """Have all runs judged where the order, the groups or the filter need it; how many are not."""
    names = {asked.order.removeprefix("-"), *asked.groups}
    if is_condition(asked.filter):
        try:
            _, columns = parsed_condition(asked.filter, table.column)
            names |= {column.name for column in columns}
        except Problem:  # said where the table would stand
            return 0
    return runs.facts.want_standings(table.rows) if names & OF_VERDICTS else 0


def _progress(num_unread: int, num_unjudged: int, num_runs: int) -> None:
    """What is still being read or judged, of how many runs."""
    if num_unread:
        done = num_runs - num_unread
        st.progress(
            done / num_runs,
            f"Reading settings and metrics: {done:,} of {num_runs:,} runs. Until then, what is "
            "filtered, sorted or grouped by them lacks the others.",
        )
    elif num_unjudged:
        done = num_runs - num_unjudged
        st.progress(
            done / num_runs,
            f"Judging: {done:,} of {num_runs:,} runs. Until then the others have no verdict.",
        )


def _page(num_lines: int) -> tuple[int, int]:
    """The page that the address names, and how many there are."""
    num_pages = max(1, -(-num_lines // PER_PAGE))
    text = st.query_params.get("page", "1")
    return min(max(int(text) if text.isdecimal() and len(text) < 9 else 1, 1), num_pages), num_pages


def _lines(
    table: RunsTable, hits: Sequence[int], asked: state.TableRequest
) -> tuple[Sequence[TableLine], int]:
    """The lines of the page that the address names; and the runs or groups of all pages."""
    ranked = table.sorted(hits, asked.order)
    groups: list[TableLine] = []
    if asked.groups:
        # A run that is still to be read belongs to a group that nobody knows.
        ranked = [n for n in ranked if table.facts[n] is not None]
        groups = ordered(table, grouped(table, ranked, asked.groups), asked.order)
    count = len(groups) if asked.groups else len(ranked)
    page, _ = _page(count)
    part = slice((page - 1) * PER_PAGE, page * PER_PAGE)
    if asked.groups:
        return _group_lines(table, groups[part], asked), count
    return _run_lines(table, ranked[part]), count


def _run_lines(table: RunsTable, places: Sequence[int]) -> list[TableLine]:
    # An evaluation has no curve. Of two runs with one colour the older one keeps it, in any order.
    rows = [table.rows[n] for n in places]
    drawn = {row.run_id for row in rows if row.origin is not Origin.EVALUATED}
    by_age = [row.run_id for row in sorted(table.rows, key=lambda row: row.created_at)]
    of_run = colors(by_age, [name for name in by_age if name in drawn], PALETTE)
    return [
        TableLine(
            kind="run",
            digest=digest_of(row.run_id),
            name=row.run_id,
            rows=(n,),
            colour=of_run.get(row.run_id, ""),
        )
        for n, row in zip(places, rows, strict=True)
    ]


def _group_lines(
    table: RunsTable, groups: Sequence[TableLine], asked: state.TableRequest
) -> list[TableLine]:
    """Groups, each with its runs below where it is open."""
    of_all = grouped(table, range(len(table.rows)), asked.groups)
    digests = sorted(group.digest for group in of_all)
    of_group = colors(digests, sorted(group.digest for group in groups), PALETTE)
    lines = []
    for group in groups:
        is_open = group.digest in asked.open_groups
        lines.append(replace(group, colour=of_group[group.digest], is_open=is_open))
        for n in group.rows[:MAX_OPENED] if is_open else ():
            run_id = table.rows[n].run_id
            lines.append(TableLine(kind="member", digest=digest_of(run_id), name=run_id, rows=(n,)))
    return lines


def _footer(num_lines: int, num_hits: int, num_runs: int, *, is_grouped: bool) -> None:
    """How many there are, and the pages."""
    page, num_pages = _page(num_lines)
    with st.container(horizontal=True, vertical_alignment="center"):
        if num_pages > 1:
            key = "_runs_page"
            st.session_state[key] = page
            st.pagination(num_pages, key=key, on_change=lambda: go(page=st.session_state[key]))
        runs = f"{num_hits:,} of {num_runs:,} runs" if num_hits < num_runs else f"{num_runs:,} runs"
        st.caption(f"{num_lines:,} groups of {runs}" if is_grouped else runs)
        st.caption("Click a name to open it, a heading to sort. Tick to compare, tag, pin or note.")


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
