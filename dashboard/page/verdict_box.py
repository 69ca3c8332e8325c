"""The verdict on a page: what is the matter, the evidence, what to do, and a button that does it.

Each of its three parts takes two lines at most, so that the charts below stay in sight; all of the
verdict is one click away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.sentences import verdict_parts
from echoscope.store.records import CommandAction
from echoscope.store.status import RUNNING

from ..charts import theme
from ..data import queries
from ..escaping import visible
from ..live import lines as live_lines
from ..live import pulses
from ..steer import branch_form, steering
from ..steer.branch_orders import override_words
from ..web.settings import settings
from ..words import plain
from . import links, ui

_STYLE = """<style>
.st-key-verdict_box { border-left: 6px solid COLOUR; gap: 0.4rem;
  background: color-mix(in srgb, COLOUR 9%, transparent); }
.st-key-verdict_apply button, .st-key-verdict_apply button p { white-space: normal;
  height: auto; overflow-wrap: anywhere; }
@media (min-width: 800px) {
  .st-key-verdict_top { flex: none; }
  .st-key-verdict_do { min-height: 2.5rem; }
  .st-key-verdict_top [data-testid=stMarkdown] p,
  .st-key-verdict_top [data-testid=stText] > span { display: -webkit-box; overflow: hidden;
    -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
}
</style>"""
"""On a phone lines are short, and nothing is cut."""


def _style(found: Verdict) -> str:
    return _STYLE.replace("COLOUR", theme.STATES[theme.shown_state(found)])


def verdict_box(run_id: str, *, upto: int | None = None) -> Verdict:
    """The verdict in words, with its state, since when, and what to do.

    Args:
        upto: The step after which the verdict is to be said; None for the newest.
    """
    if upto is not None:
        return _earlier(run_id, upto)
    found = queries.verdict(run_id)
    with st.container(border=True, key="verdict_box"):
        st.html(_style(found))
        parts = verdict_parts(found.text)
        with st.container(key="verdict_top", gap="xsmall"):
            st.markdown(f"**{plain(parts[0][1], 400)}**")
            for title, words in parts[1:]:
                if title in ("Evidence", "What to do"):
                    st.text(visible(f"{title}: {words.partition(chr(10))[0]}", 1500))
        row = st.container(
            horizontal=True, vertical_alignment="center", gap="small", key="verdict_do"
        )
        with row:
            for action in found.actions[:1]:
                apply_button(run_id, action, is_live_page=False)
            _head(run_id, found)
            _whole(found, parts)
    return found


def _head(run_id: str, found: Verdict) -> None:
    state, is_judging = found.state.value, queries.is_judging(run_id)
    is_first = is_judging and found.last_step is None
    badge = "being judged" if is_first else state
    st.badge(badge, color="gray" if is_first else theme.STATE_TONES[theme.shown_state(found)])
    if found.last_step is not None:
        every_s = pulses.EVERY_S if ui.is_following(run_id) or is_judging else None
        newest = pulses.verdict_line(run_id)
        live_lines.show(run_id, "verdict", newest, kind="caption", every_s=every_s)


def _whole(found: Verdict, parts: list[tuple[str, str]]) -> None:
    """Everything that it says, and the command of its advice to copy."""
    with st.popover("The whole verdict"):
        for title, words in parts:
            text = words.partition("\n")[0]
            st.text(visible(f"{title}: {text}" if title else text, 4000))
        for action in found.actions[:1]:
            if action.command:
                ui.command(action.command)


def apply_button(run_id: str, action: Action, *, is_live_page: bool) -> None:
    """A button for an action that the run can still take; it leads to one confirmation.

    Args:
        is_live_page: The page has the forms that the button leads to.
    """
    words = _button_words(run_id, action)
    if not words or not st.button(plain(words, 160), key="verdict_apply"):
        return
    changes = dict(action.settings)
    if action.verb == "set":
        steering.propose(run_id, CommandAction.SET, changes, action.why)
    else:
        with st.spinner("The settings are being checked"):
            branch_form.suggest(run_id, action.checkpoint, changes, action.why)
    if is_live_page:
        st.rerun()  # the question is asked elsewhere on the page
    st.switch_page(links.script("live"), query_params=links.link_params(run=run_id))


def _button_words(run_id: str, action: Action) -> str:
    """`Apply: branch from checkpoint 20 with optim.lr=0.0001`; empty where nothing can be done."""
    given = settings()
    pairs = " ".join(override_words(action.settings))
    if not pairs or given.is_read_only:
        return ""
    if action.verb == "set":
        is_live = queries.info(run_id).status == RUNNING
        is_news = _differs(queries.current_settings(run_id), action.settings)
        return f"Apply: set {pairs}" if is_live and is_news else ""
    if action.verb == "branch" and given.may_branch:
        where = "the last good checkpoint"
        where = where if action.checkpoint is None else f"checkpoint {action.checkpoint}"
        return f"{'Try' if action.is_trial else 'Apply'}: branch from {where} with {pairs}"
    return ""


def _differs(current: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    return any(current.get(key) != value for key, value in wanted.items())


def _earlier(run_id: str, step: int) -> Verdict:
    """What was to be said after an earlier step. What to do about it is said of the newest only."""
    found = queries.verdict_at(run_id, step)
    with st.container(border=True, key="verdict_box"):
        st.html(_style(found))
        line = st.container(horizontal=True, vertical_alignment="center")
        state = found.state.value
        line.badge(state, color=theme.STATE_TONES[state])
        line.caption(plain(f"after step {step}, confidence {found.confidence}"))
        with line:
            links.link("Newest verdict", "diagnosis", run=run_id)
        parts = [part for part in verdict_parts(found.text) if part[0] != "What to do"]
        st.markdown(f"**{plain(parts[0][1], 400)}**")
        for title, words in parts[1:]:
            st.text(visible(f"{title}: {words}", 1500))
    return found
