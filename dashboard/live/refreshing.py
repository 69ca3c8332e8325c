"""How a page, or a part of it, is drawn again: at a beat, or when something of a run has changed.

A part that follows a run has a listener in the browser (`pulse.js`). It asks for a few bytes about
the run once a second, and in a hidden tab rarely or not at all; the part is drawn again when an
answer differs from what it was drawn with, and at no other time. To draw the smallest part again
Streamlit's page looks at all others, which costs more than the part: what changes at every step is
therefore not drawn again at all (lines, tiles, charts).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import streamlit as st

from ..escaping import visible
from ..page.problems import Problem
from .pulses import EVERY_S, Pulse, address, pulse
from .scripts import component

BREATH = 4.0
"""A page that follows a run draws itself at most this fraction of the time: one in four."""
LISTENER = "listener_"
"""How the keys of listeners begin."""
_DRAW_S = "_draw_s"


@contextmanager
def timed() -> Iterator[None]:
    """Notes how long a page takes to draw: beats leave that time several times over to people."""
    since = time.perf_counter()
    yield
    st.session_state[_DRAW_S] = time.perf_counter() - since


def guarded(draw: Callable[[], object]) -> None:
    """Draw, or say in calm words why that cannot be."""
    try:
        draw()
    except Problem as trouble:
        problem(trouble)


def problem(trouble: Problem) -> None:
    """What cannot be shown, and the way out; a command in it can be copied."""
    with st.container(border=True):
        st.badge("Cannot be shown", color="orange")
        st.text(visible(trouble.text, 1000))
        sentence, colon, command = trouble.advice.partition(": echoscope ")
        if sentence:
            st.text(visible(sentence + colon[:1], 1000))
        if command:
            st.code(visible(f"echoscope {command}", 1000), language="bash")


def beat(
    key: str, every_s: float | None, draw: Callable[[], None], *, has_news: Callable[[], bool]
) -> None:
    """Draws a part every `every_s` seconds (None: once), and the whole page when there is news.

    For what no pulse of a run tells. On a busy machine beats are further apart, so that a click
    does not wait behind them.
    """
    look = _look(draw, has_news)

    @st.fragment(run_every=None if every_s is None else _rested(every_s), key=key)
    def part() -> None:
        guarded(look)

    part()


def follow(
    key: str,
    run_id: str,
    names: Sequence[str],
    draw: Callable[[], object],
    *,
    has_news: Callable[[], bool] | None = None,
    seen: Pulse | None = None,
    every_s: float = EVERY_S,
    is_always: bool = False,
) -> None:
    """Draws a part, and again when the run's pulse has changed; the whole page when there is news.

    Args:
        names: What of the pulse counts.
        has_news: Whether more than this part has to be drawn; None where that is never so.
        seen: The pulse as it was before the page read anything of the run; None where only this
            part is concerned.
        is_always: Also while the tab is hidden, a few times a minute.
    """
    look = _look(draw, has_news) if has_news else draw
    first = seen

    @st.fragment(key=key)
    def part() -> None:
        nonlocal first
        # Before anything is read: what comes while the part is drawn is news.
        now, first = first or pulse(run_id), None
        guarded(look)
        data = {
            "address": address(run_id),
            "seen": {name: now[name] for name in names},
            "every": round(_rested(every_s), 1),
            "always": is_always,
        }
        listener = component("pulse.js", "listen")
        listener(key=f"{LISTENER}{key}", data=json.dumps(data), height=0, on_news_change=_heard)

    part()


def _look(draw: Callable[[], object], has_news: Callable[[], bool]) -> Callable[[], None]:
    """Draws the part, then asks for news; never while the whole page is drawn: it might not end."""
    is_alone = False

    def look() -> None:
        nonlocal is_alone
        was_alone, is_alone = is_alone, True
        guarded(draw)  # first: a click on a button holds for this drawing alone
        if was_alone and has_news():
            # Streamlit looks for requests here: who has just chosen another page goes there, and is
            # not brought back by what comes next.
            st.empty()
            st.rerun()

    return look


def _rested(every_s: float) -> float:
    return max(every_s, BREATH * float(st.session_state.get(_DRAW_S, 0.0)))


def _heard() -> None:
    """Streamlit tells a component's events to whoever asks; drawing again is all there is to it."""
