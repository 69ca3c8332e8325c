"""The conversation of the replay, scrolled to its chosen turn."""

from __future__ import annotations

from .scripts import component


def bring_into_sight(element: str) -> None:
    """Scroll the conversation of the page to its chosen turn; `shown` names both."""
    component("echoscope_talk", "talk.js")(key="replay_talk", data=element, height=0)
