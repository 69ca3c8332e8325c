"""The verdict on the page Diagnosis, and the button that does what a verdict advises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import streamlit as st

from echoscope.diagnostics.judge.advice.actions import Action
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.records import CommandAction
from echoscope.store.status import RUNNING
from echoscope.store.steer.rewinds import CHECKPOINT
from echoscope.store.steer.steering import override_words, why_no_branch

from ..data import queries
from ..live import pulses
from ..report import verdict_html
from ..steer import branch_form, steering
from ..web.settings import settings
from ..words import plain
from . import links, ui


def verdict_box(run_id: str, *, upto: int | None = None) -> Verdict:
    """The verdict in words, with its state, since when, and what to do.

    Args:
        upto: The step after which the verdict is to be said; None for the newest. What to do is
            said of the newest only.
    """
    verdict = queries.verdict(run_id) if upto is None else queries.verdict_at(run_id, upto)
    is_first = verdict.last_step is None and queries.is_judging(run_id)
    with st.container(key="verdict_box", gap="small"):
        st.html(verdict_html.STYLE)
        if is_first:
            st.badge("being judged", color="gray")
        else:
            st.html(verdict_html.box(verdict))
        with st.container(horizontal=True, vertical_alignment="center", gap="small"):
            if upto is None:
                apply_button(run_id, verdict, is_live_page=False)
                if verdict.state.is_failure and not why_no_branch(queries.info(run_id).config):
                    links.link("Cure", "cure", run=run_id)
                if ui.is_following(run_id):  # the box says of which step it is
                    newest_line(run_id, verdict)
            else:
                links.link("Newest verdict", "diagnosis", run=run_id)
    return verdict


def newest_line(run_id: str, verdict: Verdict) -> None:
    """Of which step the verdict is, as it is now and as it becomes."""
    if verdict.last_step is not None:
        is_moving = ui.is_following(run_id) or queries.is_judging(run_id)
        every_s = pulses.EVERY_S if is_moving else None
        pulses.show_line(run_id, "verdict", every_s=every_s)


def apply_button(run_id: str, verdict: Verdict, *, is_live_page: bool) -> None:
    """A button that agrees to what the run asks for, or else for the first action of a verdict.

    It is there where the run can still take that, and leads to one confirmation.

    Args:
        is_live_page: The page has the forms that the button leads to.
    """
    order, action = queries.asked_rewind(run_id), next(iter(verdict.actions), None)
    if order is not None:
        label = _agreement_words(order)
    else:
        label = "" if action is None else _button_words(run_id, action)
    if not label or not st.button(plain(label, 160), key="verdict_apply"):
        return
    changes = dict(() if action is None else action.settings)
    if order is not None:
        steering.propose(run_id, CommandAction.REWIND, order, "agreed with the guard")
    elif action is None:
        return
    elif action.verb == "set":
        steering.propose(run_id, CommandAction.SET, changes, action.why)
    else:
        branch_form.suggest(run_id, action.checkpoint, changes, action.why)
    if is_live_page:
        st.rerun()  # the question is asked elsewhere on the page
    st.switch_page(links.script("live"), query_params=links.link_params(run=run_id))


def _agreement_words(order: Mapping[str, Any]) -> str:
    """`Agree: rewind to checkpoint 20 with optim.lr=0.0001`; empty where nobody may steer."""
    changes = {key: value for key, value in order.items() if key != CHECKPOINT}
    order_text = f"Agree: rewind to checkpoint {order[CHECKPOINT]} with "
    return "" if settings().is_read_only else order_text + " ".join(override_words(changes))


def _button_words(run_id: str, action: Action) -> str:
    """`Apply: branch from checkpoint 20 with optim.lr=0.0001`; empty where nothing can be done."""
    given = settings()
    pairs = " ".join(override_words(action.settings))
    if not pairs or given.is_read_only:
        return ""
    if action.verb == "set":
        current = queries.current_settings(run_id)
        is_news = any(current.get(key) != value for key, value in action.settings.items())
        is_live = queries.info(run_id).status == RUNNING
        return f"Apply: set {pairs}" if is_live and is_news else ""
    if action.verb == "branch" and given.may_branch:
        where = "the last good checkpoint"
        where = where if action.checkpoint is None else f"checkpoint {action.checkpoint}"
        return f"{'Try' if action.is_trial else 'Apply'}: branch from {where} with {pairs}"
    return ""
