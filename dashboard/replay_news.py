"""What the replay says and does about steps that a live run finishes while somebody looks."""

from __future__ import annotations

import streamlit as st

from . import queries, ui
from .pulses import Pulse
from .replay_list import COLUMNS
from .replay_sources import Source, asked_of_page
from .url_state import go

_READING = ("step", "trajectory", "turn", "part", "page", "against")
"""URL parameters of somebody who looks at something: their page stays where it is."""


def watch(
    run_id: str, source: Source, asked: tuple[object, ...], seen: Pulse | None = None
) -> None:
    """A line about newer steps, while the run is followed.

    The page goes on by itself only where nobody chose anything: neither step nor trajectory. It is
    drawn anew, too, when the update has come to trajectories of its list; what is shown stays.

    Args:
        asked: `asked_of_page` when the page was drawn.
        seen: The pulse of the run before the page read anything of it.
    """
    if source.step is None or not ui.is_following(run_id):
        return
    step = source.step
    is_pending = bool(source.rows["kept"].isna().any())

    def has_news() -> bool:
        if asked_of_page(run_id) != asked:  # the button, or a newer step where none was chosen
            return "step" in st.query_params or not is_reading()
        return is_pending and has_come(run_id, source)

    def line() -> None:
        newer = queries.info(run_id).last_step - step
        if newer <= 0:
            return
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption("1 newer step" if newer == 1 else f"{newer:,} newer steps")
            st.button(
                "Go to the newest",
                key="replay_newest",
                on_click=go,
                kwargs=dict.fromkeys(_READING),
                type="tertiary",
            )

    ui.follow("replay_news", run_id, ("position",), line, has_news=has_news, seen=seen)


def is_reading() -> bool:
    """Whether somebody looks at a certain step, trajectory or turn."""
    return any(st.query_params.get(name) for name in _READING)


def has_come(run_id: str, source: Source) -> bool:
    """Whether the update has come to trajectories that it had not seen when they were listed."""
    assert source.step is not None
    pending = source.rows.loc[source.rows["kept"].isna(), "id"]
    now = queries.listing(run_id, source.step)[list(COLUMNS)]
    return bool(now.loc[now["id"].isin(pending), "kept"].notna().any())
