"""What the replay says and does about steps that a live run finishes while somebody looks."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from ..data import queries
from ..live import lines as live_lines
from ..live import pulses
from ..live.pulses import Pulse
from ..live.refreshing import follow
from ..page import ui
from ..page.url_state import go
from .list import COLUMNS, NEVER_TRAINED
from .sources import Source

_READING = ("step", "trajectory", "turn", "part", "page", "against")
"""URL parameters of somebody who looks at something."""


def watch(run_id: str, source: Source, seen: Pulse | None = None) -> None:
    """A line about newer steps with a way there, while the run is followed.

    The page stays where it is: nobody can read what changes under their eyes. It is drawn anew only
    when the update has come to trajectories of its list, and for the first newer step.

    Args:
        seen: The pulse of the run before the page read anything of it.
    """
    if source.step is None:
        return
    step = source.step
    is_following = ui.is_following(run_id)
    is_pending = bool(_pending(source).any())

    def is_behind() -> bool:
        return queries.info(run_id).last_step > step

    # A step of a run that has ended is a choice, unless it was the newest when the page was opened.
    if is_behind() and (is_following or "step" not in st.query_params):
        every_s = pulses.EVERY_S if is_following else None
        with st.container(horizontal=True, vertical_alignment="center"):
            line = pulses.newest_line(run_id)
            live_lines.show(run_id, "newest", line, kind="caption", every_s=every_s)
            st.button("Go to the newest", key="replay_newest", on_click=_forget, type="tertiary")
        return
    if not is_following:
        return

    def has_news() -> bool:
        return is_behind() or (is_pending and has_come(run_id, source))

    follow("news", run_id, ("position",), lambda: None, has_news=has_news, seen=seen)


def await_the_first(run_id: str, seen: Pulse) -> None:
    """Draws the page again when a run that had no trajectory does something."""
    follow("news", run_id, ("position",), lambda: None, has_news=lambda: True, seen=seen)


def _forget() -> None:
    st.session_state.pop(ui.SEEN_STEP, None)
    go(**dict.fromkeys(_READING))


def has_come(run_id: str, source: Source) -> bool:
    """Whether the update has come to trajectories that it had not seen when they were listed."""
    assert source.step is not None
    pending = source.rows.loc[_pending(source), "id"]
    now = queries.listing(run_id, source.step)[list(COLUMNS)]
    return bool(now.loc[now["id"].isin(pending), "kept"].notna().any())


def _pending(source: Source) -> pd.Series[bool]:
    """Which rows an update will still come to."""
    return source.rows["kept"].isna() & ~source.rows["split"].isin(NEVER_TRAINED)
