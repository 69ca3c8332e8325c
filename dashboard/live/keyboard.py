"""Keys that Streamlit's buttons cannot have: [ and ] for steps, / for search, ? for help.

Letters are shortcuts of the buttons themselves; `keyboard.js` listens for the others.
"""

from __future__ import annotations

import json

from .scripts import component

PREVIOUS_STEP = "replay_previous_step"
NEXT_STEP = "replay_next_step"
SEARCH = "replay_search"
HELP = "replay_help"
"""Keys of the widgets, which Streamlit turns into classes `st-key-...`."""


def bring_into_sight(shown: str) -> None:
    """Scroll the conversation of the page to its chosen turn; `shown` names both."""
    component("echoscope_talk", "keyboard.js", "bringIntoSight")(
        key="replay_talk", data=shown, height=0
    )


def listen() -> None:
    """Listen for the keys while this page is shown."""
    pressed = {"[": PREVIOUS_STEP, "]": NEXT_STEP, "?": HELP}
    data = json.dumps({"pressed": pressed, "search": SEARCH})
    component("echoscope_keys", "keyboard.js")(key="replay_keys", data=data, height=0)
