"""The one question before anything is done to a run: a command is sent, or a branch is started.

What somebody asks for is a draft. A session has one draft at most, and confirming takes the draft
away, so pressing twice does it once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import streamlit as st

from echoscope.store.steer.steering import MAX_AUTHOR, MAX_REASON, SteeringError, os_user

from ..escaping import visible
from ..page import ui
from ..page.problems import Problem
from ..words import Colour

_DRAFT, _PROBLEM, _NAME = "draft", "draft_problem", "author_name"
_AUTHOR, _REASON = "draft_author", "draft_reason"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SteeringDraft:
    """What somebody is about to do to a run."""

    run_id: str
    question: str
    """What will happen, in our own words; Markdown."""
    button: str
    """What the button confirms: `pause`."""
    show: Callable[[], object]
    """Draws what would change."""
    do: Callable[[str, str], object]
    """Does it, given who and why. Raises SteeringError or Problem."""
    failure: str
    """Two words for when that fails: `not sent`."""
    reason: str = ""
    """What is typed in already."""
    use_of_reason: str
    """What becomes of the reason, in a few words."""


def propose(draft: SteeringDraft) -> None:
    """Ask for confirmation in the panel of the page Live, in place of any other draft."""
    drop()
    st.session_state[_DRAFT] = draft
    ui.open_panel()


def refuse(failure: str, why: str) -> None:
    """Say in the place of the question why there is none."""
    drop()
    st.session_state[_PROBLEM] = (failure, why)


def drop() -> None:
    """Forget the draft, and what went wrong with the one before."""
    for key in (_DRAFT, _PROBLEM, _REASON):
        st.session_state.pop(key, None)


def ask(run_id: str) -> None:
    """Draw the question about this run, if there is one, or why the last one came to nothing."""
    problem = st.session_state.pop(_PROBLEM, None)
    if problem is not None:
        failure, why = problem
        line(failure, "red", why)
    draft = st.session_state.get(_DRAFT)
    if not isinstance(draft, SteeringDraft) or draft.run_id != run_id:
        return
    with st.container(border=True, key="draft_question"):
        st.markdown(draft.question)
        draft.show()
        author, reason = st.columns([1, 3])
        author.text_input(
            "Who",
            asker(),
            key=_AUTHOR,
            max_chars=MAX_AUTHOR,
        )
        reason.text_input(
            "Why",
            draft.reason[:MAX_REASON],
            key=_REASON,
            max_chars=MAX_REASON,
            placeholder=draft.use_of_reason,
        )
        row = st.container(horizontal=True)
        row.button(
            f"Confirm: {draft.button}",
            key="draft_confirm",
            type="primary",
            on_click=_confirm,
            args=(draft,),
        )
        row.button("Cancel", key="draft_cancel", on_click=drop)


def _confirm(draft: SteeringDraft) -> None:
    """Do it, once. A click on the question before leaves the draft that stands now."""
    if st.session_state.get(_DRAFT) is not draft:
        return
    author = str(st.session_state.get(_AUTHOR, "")).strip() or asker()
    reason = str(st.session_state.get(_REASON, "")).strip()
    drop()
    st.session_state[_NAME] = author
    try:
        draft.do(author, reason)
    except (SteeringError, Problem) as error:
        st.session_state[_PROBLEM] = (draft.failure, str(error))


def asker() -> str:
    """Whoever sits here, as they called themselves last, or as this machine calls them."""
    return str(st.session_state.get(_NAME) or os_user())


def line(badge: str, colour: Colour, text: str) -> Any:
    """One calm line; the text is foreign and is shown as it is. Returns the row, for more."""
    row = st.container(horizontal=True, vertical_alignment="center")
    row.badge(badge, color=colour)
    row.text(visible(text, 1000))
    return row
