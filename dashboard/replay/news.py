"""What the replay says and does about steps that a live run finishes while somebody looks."""

from __future__ import annotations

import streamlit as st

from ..data import queries
from ..live import pulses
from ..live.pulses import Pulse
from ..live.refreshing import follow
from ..page import ui
from ..page.url_state import go
from ..words import NEVER_TRAINED
from .listing import Listed

_READING = ("step", "trajectory", "turn", "page")
"""URL parameters of somebody who looks at something."""


def watch(run_id: str, answer: Listed, seen: Pulse | None = None) -> None:
    """A line about newer steps with a way there, while the run is followed.

    The page stays where it is: nobody can read what changes under their eyes. It is drawn anew only
    when the update has come to trajectories of its list, and for the first newer step.

    Args:
        seen: The pulse of the run before the page read anything of it.
    """
    if answer.asked.is_search:
        return
    is_following = ui.is_following(run_id)
    is_behind = queries.info(run_id).last_step > answer.asked.step
    # A step of a run that has ended is a choice, unless it was the newest when the page was opened.
    if is_behind and (is_following or "step" not in st.query_params):
        every_s = pulses.EVERY_S if is_following else None
        with st.container(horizontal=True, vertical_alignment="center"):
            pulses.show_line(run_id, "newest", every_s=every_s)
            st.button("Go to the newest", key="replay_newest", on_click=_forget, type="tertiary")
    elif is_following:
        await_news(run_id, seen, answer)


def await_news(run_id: str, seen: Pulse | None, answer: Listed | None = None) -> None:
    """Draws the page again for a newer step, and when the update came to what is listed.

    Args:
        answer: None where the run has no trajectory yet: then all is news.
    """

    def has_news() -> bool:
        return (
            answer is None
            or queries.info(run_id).last_step > answer.asked.step
            or has_come(run_id, answer)
        )

    follow("news", run_id, ("position",), lambda: None, has_news=has_news, seen=seen)


def has_come(run_id: str, answer: Listed) -> bool:
    """Whether the update has come to trajectories that it had not seen when they were listed."""
    rows = answer.rows
    is_pending = rows["kept"].isna() & ~rows["split"].isin(NEVER_TRAINED)
    pending = rows.loc[is_pending, "id"]
    if not len(pending):
        return False
    now = queries.listing(run_id, answer.asked.step)
    return bool(now.loc[now["id"].isin(pending), "kept"].notna().any())


def _forget() -> None:
    st.session_state.pop(ui.SEEN_STEP, None)
    go(**dict.fromkeys(_READING))
