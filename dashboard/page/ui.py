"""What every page has: frame, run picker, verdict, links, notices, empty and error states.

A view is a function that draws, given to `frame` or `run_frame`:

    def draw(run_id: str) -> None: ...

    ui.run_frame("Live", draw)

Streamlit reads Markdown in labels, captions and notices: what comes from a file, a model or a URL
goes through `plain` first, or into `st.text`, `st.code` or `st.dataframe`, which read none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.store.errors import StoreError
from echoscope.store.log.layout import shown_path
from echoscope.store.query.listing import RunRow
from echoscope.text.sentences import capitalised

from ..charts import theme
from ..data import queries
from ..escaping import escape, visible
from ..live import pulses
from ..live.refreshing import LISTENER, follow, guarded, timed
from ..web.settings import settings
from ..words import plain
from . import links
from .problems import Problem

Entry = TypeVar("Entry")
IDLE_S = 5.0
"""Between two looks at a run that is not live."""
_PICKER_PX = 260
MAX_PICKED = 200
"""Runs in the picker; the page Runs has all of them."""
PANEL, _OPEN_PANEL = "panel", "_open_panel"
"""URL parameter and session state: whether the panel beside the charts is open."""
ARRIVED = "_arrived"
"""Session state: somebody came from another page; the page that has taken note removes it."""
SEEN_STEP = "_seen_step"
"""Session state: (run, step) that was the newest when somebody came to the page."""
_SHOWN_RUN, _PICKER, _PAGE = "_shown_run", "_run_picker", "_page"
_STYLE = """<style>
[data-testid="stMainBlockContainer"] { padding: 4rem 2rem 3rem; }
[data-testid="stMainBlockContainer"] h1 { font-size: 1.4rem; padding: 0; }
[data-testid="stTopNav"] { padding-left: 1.5rem; }  /* the menu begins where the page does */
[data-testid="stText"] { white-space: pre-wrap; overflow-wrap: anywhere; }
pre.command { margin: 0; padding: 0.6rem 0.8rem; border-radius: 0.5rem; font-size: 0.875rem;
  background: rgba(128, 128, 128, 0.12); white-space: pre-wrap; user-select: all; }
[data-testid="stPageLink-NavLink"] p { text-decoration: underline; text-underline-offset: 3px; }
[class*="st-key-LISTENER"] { position: absolute; height: 0; }
.st-key-verdict_apply button { min-height: 0; padding: 0.25rem 0.75rem; }
.st-key-verdict_apply button p { font-size: 0.85rem; line-height: 1.1rem; white-space: normal;
  overflow-wrap: anywhere; }
.st-key-run_head { min-height: 2.5rem; }
.st-key-run_head h1 { white-space: nowrap; }
.st-key-run_head > :first-child { flex: none; }
.st-key-run_status { flex-wrap: nowrap; }
.st-key-run_status > :not([class*="st-key-"]) { position: absolute; }  /* only listeners */
.st-key-run_status .es-line-badge { line-height: 1.2rem; max-height: 2.5rem; overflow: hidden; }
@media (min-width: 1000px) { .st-key-run_head, .st-key-run_beside { flex-wrap: nowrap; } }
@media (max-width: 640px) {
  [data-testid="stMainBlockContainer"] { padding: 3.75rem 1rem 3rem; }
  .st-key-run_head { gap: 0.5rem; }
  .st-key-run_head > * { order: 2; }
  .st-key-run_head > :first-child, .st-key-run_head > .st-key-_run_picker { order: 0; }
  .st-key-run_head > .st-key-_run_picker { flex: 1 1 8rem; width: auto; min-width: 0; }
  .st-key-run_head > .st-key-panel { order: 1; }
  .st-key-run_head > :has(> .st-key-run_beside) { flex: 1 1 100%; }
  .st-key-run_status .es-line-badge { max-height: none; }
}
</style>""".replace("LISTENER", LISTENER)


def enter(page: str) -> None:
    """Somebody is on a page of the menu: whoever comes from another one finds the newest there."""
    if st.session_state.get(_PAGE) != page:
        st.session_state[_PAGE] = page
        st.session_state[ARRIVED] = True
        st.session_state.pop(SEEN_STEP, None)


def frame(title: str, draw: Callable[[DeltaGenerator], None]) -> None:
    """A page that belongs to no run: its title, what `draw` draws, and calm words for a Problem.

    `draw(line)` may put controls beside the title, into `line`.
    """
    line = _head(title)
    with timed():
        guarded(lambda: draw(line))


def _head(title: str) -> DeltaGenerator:
    """The first line of a page, of one height on every page, with the title in it."""
    st.html(_STYLE)
    line = st.container(horizontal=True, vertical_alignment="center", key="run_head", gap="small")
    line.title(title, anchor=False, width="content")
    return line


def run_frame(
    title: str,
    draw: Callable[[str], Callable[[], object] | None],
    *,
    beside: Callable[[str], None] | None = None,
    is_urgent: bool = False,
) -> None:
    """A page about one run: title, run picker, live or stale, and what `draw(run_id)` draws.

    `beside(run_id)` draws at the right end of the first row. Where the page `is_urgent`, `draw`
    begins before the rest of that row, and what it returns goes on after it: a browser shows what
    comes first while it still works on the rest.
    """

    def body() -> None:
        row = _head(title)
        run_ids, run_id = _asked_run()
        if run_id is None:
            with row:
                _picker(run_ids, run_id)
            missing_run()
            return
        seen = pulses.pulse(run_id)  # first: whatever comes while the rest is read is news
        go_on = draw(run_id) if is_urgent else None
        with row:
            _picker(run_ids, run_id)
        with row.container(horizontal=True, vertical_alignment="center", key="run_status"):
            live_marker(run_id, seen)
            _tab(title, run_id)
        if beside is not None:
            with row:
                beside(run_id)
        if not is_urgent:
            draw(run_id)
        elif go_on is not None:
            go_on()
        warnings(run_id)

    with timed():
        guarded(body)


def is_phone() -> bool:
    """Whether the browser says that it is one of a telephone, where tables have little room."""
    return "Mobi" in st.context.headers.get("User-Agent", "")


def open_panel() -> None:
    """Have the panel of the page Live open when the page is drawn next."""
    if not st.session_state.get(PANEL):  # who closes it later is not overruled
        st.session_state[_OPEN_PANEL] = True


def close_panel() -> None:
    """For a button's `on_click`."""
    st.session_state[PANEL] = False


def panel_switch() -> None:
    """Opens and closes the panel of the page Live."""
    if st.session_state.pop(_OPEN_PANEL, False):
        st.session_state[PANEL] = True
    st.toggle("Panel", key=PANEL, bind="query-params")


def empty(text: str, command: str = "") -> None:
    """There is nothing to show yet: what is missing, and the command that makes it."""
    with st.container(border=True):
        st.text(visible(text, 1000))
        if command:
            st.code(visible(command, 1000), language="bash")


def empty_root() -> None:
    root = settings().root
    empty(
        f"There are no runs under {root} yet. This makes one on the CPU in about three minutes:",
        f"echoscope demo --root {shown_path(root)}",
    )


def notice(text: str) -> None:
    """One calm line; `text` may be hostile."""
    st.info(plain(text, 300))


def _asked_run() -> tuple[list[str], str | None]:
    """The runs to choose from, and the one that the URL names, or the newest.

    It is None where that run, or any run, is missing. The URL always says which run is shown, also
    when nobody chose one: it can be shared. A run that the URL names and that is gone is never
    replaced by another one, whose buttons would be pressed for it.
    """
    rows = [row for row in queries.runs(most=MAX_PICKED) if not row.problem]
    ids = [row.run_id for row in rows[:MAX_PICKED]]
    if not ids:
        return [], None
    asked = st.query_params.get("run")
    last = st.session_state.get(_SHOWN_RUN)
    run_id = (asked or last or ids[0]) if asked or not last or exists(last) else ids[0]
    if not exists(run_id):
        return ids, None
    st.session_state[_SHOWN_RUN] = run_id
    if asked != run_id:
        st.query_params["run"] = run_id
    return ids if run_id in ids else [*ids, run_id], run_id


def _picker(run_ids: Sequence[str], run_id: str | None) -> None:
    """Where another run is chosen; nothing where there is none at all."""
    if not run_ids:
        return
    st.session_state[_PICKER] = run_id
    rows = {row.run_id: row for row in queries.runs(most=0)}
    st.selectbox(
        "Run",
        run_ids,
        index=None if run_id is None else 0,  # with None there is a button that empties the choice
        key=_PICKER,
        on_change=_picked,
        format_func=lambda run_id: _label(rows[run_id]) if run_id in rows else visible(run_id),
        placeholder="Choose a run",
        label_visibility="collapsed",
        width=_PICKER_PX,
    )


def _picked() -> None:
    if st.session_state[_PICKER] is not None:
        st.query_params["run"] = st.session_state[_PICKER]


def exists(run_id: str) -> bool:
    """Whether the root has a run of this name."""
    try:
        queries.path_of(run_id)
    except Problem:
        return False
    return True


def missing_run() -> None:
    """In place of a page whose run the URL names and nobody has; or of any, where there is none."""
    asked = st.query_params.get("run")
    if not asked or not any(not row.problem for row in queries.runs(most=MAX_PICKED)):
        empty_root()
        return
    try:
        queries.path_of(asked)
    except Problem as trouble:
        empty(f"{capitalised(trouble.text)}. {trouble.advice}")
        links.link("All runs", "runs", run=None)


def _label(row: RunRow) -> str:
    name = row.name if row.name and row.name != row.run_id else ""
    return visible(f"{row.run_id}  ({name})" if name else row.run_id, 120)


def live_marker(run_id: str, seen: pulses.Pulse) -> None:
    """The run's status and step, as they are and as they become, and whether to follow them.

    Args:
        seen: The pulse as it was before the page read anything of the run.
    """
    status = queries.info(run_id).status
    is_live = status == "running"
    toggle = is_live and st.toggle("Follow", value=True, key="follow", bind="query-params")
    every_s = None if is_live and not toggle else pulses.EVERY_S if is_live else IDLE_S
    pulses.show_line(run_id, "status", every_s=every_s)
    if every_s is not None:
        # A run that began or ended to be live has another page.
        follow(
            "status",
            run_id,
            ("status",),
            lambda: None,
            has_news=lambda: True,
            seen=seen,
            every_s=every_s,
        )


def _tab(title: str, run_id: str) -> None:
    """The tab of the browser: its dot says how the run is, and an open alarm comes first."""

    def name() -> None:
        alarm = pulses.alarm_line(run_id)
        title_parts = [f"({alarm.text})", title] if alarm.text else [title]
        colour = alarm.colour if alarm.text else pulses.status_line(run_id).colour
        about = visible(run_id, 60)
        tab = " - ".join([" ".join(title_parts), about, "Echoscope"])
        st.set_page_config(page_title=tab, page_icon=theme.icon(colour))

    if is_following(run_id):
        follow("tab", run_id, ("alarms", "status"), name, is_always=True)
    else:
        name()


def is_following(run_id: str) -> bool:
    """Whether parts of the page should refresh by themselves."""
    is_wanted = st.session_state.get("follow", st.query_params.get("follow") != "false")
    return queries.info(run_id).status == "running" and bool(is_wanted)


def part(key: str, run_id: str, names: Sequence[str], draw: Callable[[], object]) -> None:
    """A part of the page: drawn again when the run's pulse changes, as long as that is followed."""
    if is_following(run_id):
        follow(key, run_id, names, draw)
    else:
        guarded(draw)


def button_column(
    label: str, key: str, entries: Sequence[Entry], clicked: Callable[[Entry], object], **looks: Any
) -> Any:
    """A column of a table with a button in each row; a click gives `clicked` the row's entry."""

    def click() -> None:
        row = st.session_state[key]["row"]
        if row < len(entries):
            clicked(entries[row])

    return st.column_config.ButtonColumn(label, type="tertiary", key=key, on_click=click, **looks)


def command(text: str) -> None:
    """A command to copy: one click marks all of it.

    `st.code` makes the browser load a highlighter of 1.5 MB first, and the charts wait for it.
    """
    st.html(f'<pre class="command">{escape(text, 1000)}</pre>')


def warnings(run_id: str) -> None:
    """What of the run could not be read and was left out."""
    damages = queries.warnings(run_id)
    if damages:
        with st.expander(f"{len(damages)} files or records are damaged and left out"):
            for text in damages[:50]:
                st.text(visible(text, 500))
            st.code(visible(f"echoscope runs verify {queries.typed(run_id)}"), language="bash")


def noting(change: Callable[[], None]) -> bool:
    """Do something that writes to the disk; whether it worked, and a calm line where it did not."""
    try:
        change()
    except (StoreError, ValueError) as error:
        st.error(plain(str(error), 400))
        return False
    return True
