"""The conversation of the replay, scrolled to its chosen turn; and keys that Streamlit has not."""

from __future__ import annotations

from collections.abc import Callable

import streamlit as st

from .scripts import component

_KEY = "replay_talk"


def show(element: str, on_step: Callable[[int], None]) -> None:
    """Scroll the conversation of the page to its chosen turn, and listen to keys.

    Args:
        element: Names trajectory and turn.
        on_step: Called with -1 or 1 for the previous or the next step.
    """

    def take() -> None:
        by = st.session_state[_KEY].get("step")
        if by in (-1, 1):
            on_step(by)

    component("talk.js")(key=_KEY, data=element, height=0, on_step_change=take)
