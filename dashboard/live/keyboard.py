"""Keys that Streamlit's buttons cannot have: [ and ] for steps, / for search, ? for help.

Letters are shortcuts of the buttons themselves. This component has no content: it listens on the
page, and presses what a mouse would. Keys typed into a field, and with Ctrl, Alt or Cmd, are left
alone. Its script is fixed text; nothing of a run goes into it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import streamlit as st

PREVIOUS_STEP = "replay_previous_step"
NEXT_STEP = "replay_next_step"
SEARCH = "replay_search"
HELP = "replay_help"
"""Keys of the widgets, which Streamlit turns into classes `st-key-...`."""

_SCRIPT = f"""
const PRESSED = {{
  "[": ".st-key-{PREVIOUS_STEP} button",
  "]": ".st-key-{NEXT_STEP} button",
  "?": ".st-key-{HELP} button",
}};
export default function () {{
  const listen = (event) => {{
    if (event.defaultPrevented || event.ctrlKey || event.altKey || event.metaKey) return;
    const at = event.target;
    const field = at instanceof Element && at.closest("input, textarea, select, [contenteditable]");
    if (event.key === "Escape" && field) {{
      event.preventDefault();  // a search field would empty itself
      field.blur();
      return;
    }}
    if (field) return;
    if (event.key === "/") {{
      const search = document.querySelector(".st-key-{SEARCH} input");
      if (search) {{ event.preventDefault(); search.focus(); search.select(); }}
      return;
    }}
    const button = PRESSED[event.key] && document.querySelector(PRESSED[event.key]);
    if (button) {{ event.preventDefault(); button.click(); }}
  }};
  document.addEventListener("keydown", listen);
  return () => document.removeEventListener("keydown", listen);
}}
"""


@functools.cache
def _component() -> Callable[..., Any]:
    return st.components.v2.component("echoscope_keys", js=_SCRIPT)


_SCROLL = """
export default function ({ data }) {
  const box = document.querySelector(".es-talk");
  const turn = box && box.querySelector(".es-turn.es-now");
  if (!turn || box.shown === data) return;
  box.shown = data;
  const reply = turn.querySelector(".es-reply"), room = box.clientHeight - 16;
  const end = reply.offsetTop + reply.offsetHeight;
  // The whole turn if it fits, else its response, else the beginning of its response.
  const top = end - turn.offsetTop <= room ? turn.offsetTop - 8 : end - room;
  box.scrollTop = Math.min(top, reply.offsetTop - 24);
}
"""


@functools.cache
def _scroller() -> Callable[..., Any]:
    return st.components.v2.component("echoscope_talk", js=_SCROLL, isolate_styles=False)


def bring_into_sight(shown: str) -> None:
    """Scroll the conversation of the page to its chosen turn; `shown` names both."""
    _scroller()(key="replay_talk", data=shown, height=0)


def listen() -> None:
    """Listen for the keys while this page is shown."""
    _component()(key="replay_keys", height=0)
