"""Steering from a page: buttons, the form of live settings, and what became of each command.

Everything goes through `store.steer.steering`, as `echoscope ctl` does, after one question.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from echoscope.store.log.layout import Layout
from echoscope.store.reader import CommandState, RunInfo
from echoscope.store.records import Command, CommandAction, CommandOutcome, author_words
from echoscope.store.status import Origin, origin_of
from echoscope.store.steer.steering import (
    Standing,
    SteeringError,
    check_settings,
    obeyed_actions,
    prepare,
    same_waiting,
    send,
    setting_warnings,
    standing,
    why_not_steered,
)
from echoscope.text.amounts import duration

from ..charts.marks import answered_after, command_words, verb
from ..charts.theme import style_sheet
from ..data import queries
from ..escaping import visible
from ..live.refreshing import follow, guarded
from ..page import ui
from ..page.problems import Problem
from ..web.settings import settings
from ..words import Colour, plain, setting_words
from . import branch_form, knobs, question
from .question import SteeringDraft, line

_SENTENCES: Mapping[CommandAction, str] = {
    CommandAction.PAUSE: "Hold the run at the next step boundary; nothing is lost.",
    CommandAction.RESUME: "Let the paused run go on.",
    CommandAction.CHECKPOINT: "Write a checkpoint at the next step boundary.",
    CommandAction.EVALUATE: "Evaluate with the next step.",
    CommandAction.STOP: (
        "Finish the step, write a checkpoint, end the run. It can be resumed. "
        "If the episodes of the step take longer than 12 s, the step is dropped."
    ),
    CommandAction.STOP_NOW: "Drop the step in progress and end the run at once.",
    CommandAction.REWIND: (
        "Finish the step, end the run, and go on from the checkpoint as a new run with these "
        "settings. This run keeps all its steps."
    ),
    CommandAction.SET: "Change settings at the next step boundary, all of them or none.",
}
_UNDONE_BY: Mapping[CommandAction, CommandAction] = {
    CommandAction.PAUSE: CommandAction.RESUME,
    CommandAction.RESUME: CommandAction.PAUSE,
}
_AT_ONCE: Mapping[CommandAction, tuple[str, str]] = {
    CommandAction.PAUSE: ("The run pauses when the current step ends.", "Paused"),
    CommandAction.RESUME: ("The run goes on now.", "Resumed"),
    CommandAction.CHECKPOINT: (
        "A checkpoint is written when the current step ends.",
        "Checkpoint written",
    ),
    CommandAction.EVALUATE: ("The run evaluates with its next step.", "Evaluation asked for"),
}
"""Sent at one click, because each loses nothing: what is said while it waits, and once it is done.
All others are asked about first."""
_SENT, _NOT_SENT = "sent_command", "not_sent"
"""Session state: the command that was sent at one click last, and why none was."""
_BUTTON_PX = 104
"""Every button of the row: another label moves nothing."""
_STYLE = style_sheet(Path(__file__).with_suffix(".css"))
_COLOURS: Mapping[CommandOutcome, Colour] = {
    CommandOutcome.APPLIED: "green",
    CommandOutcome.REJECTED: "red",
    CommandOutcome.EXPIRED: "orange",
}
_SHOWN_S = 600.0
"""How long the answer to a command stays beside the buttons, whoever gave it."""
_MAX_SHOWN = 5
"""Answered commands beside the buttons: the newest; the rest is in the list of commands."""


def propose(
    run_id: str,
    action: CommandAction,
    changes: Mapping[str, Any] | None = None,
    reason: str = "",
) -> None:
    """Ask for confirmation of a command, in the panel of the page Live."""
    values = dict(changes or {})
    question.propose(
        SteeringDraft(
            run_id=run_id,
            question=f"**{_title(action)}.** {_SENTENCES[action]}",
            button=_title(action).lower(),
            show=lambda: _preview(run_id, values) if values else None,
            do=lambda author, why: send_command(run_id, action, values, author, why),
            failure="not sent",
            reason=reason,
            use_of_reason="Kept with the command and shown on the charts",
        )
    )


def _title(action: CommandAction) -> str:
    return "Change settings" if action is CommandAction.SET else verb(action).capitalize()


def can_steer(run_id: str) -> bool:
    """Whether this page has buttons for the run."""
    return not settings().is_read_only and queries.info(run_id).status == "running"


def buttons(run_id: str) -> None:
    """The buttons of a live run; nothing for one that cannot be steered from here."""
    if not can_steer(run_id):
        return

    def draw() -> None:
        info, states = queries.info(run_id), queries.commands(run_id)
        now = standing(info, states, queries.current_settings(run_id))
        _buttons(run_id, now, obeyed_actions(info.config))
        _news(run_id, now, states)

    st.html(_STYLE)
    _followed("steering_row", run_id, draw)


def panel(run_id: str) -> None:
    """The open question, the answers to earlier ones, and the two forms, or why there are none."""
    _followed("steering", run_id, lambda: _panel(run_id), "checkpoints")


def _followed(key: str, run_id: str, draw: Callable[[], object], *names: str) -> None:
    if ui.is_following(run_id):
        follow(key, run_id, ("commands", *names), draw)
    else:
        st.fragment(lambda: guarded(draw), key=key)()


def _panel(run_id: str) -> None:
    info = queries.info(run_id)
    question.ask(run_id)  # above the forms: it is seen without scrolling
    is_live = info.status == "running"
    if is_live and not settings().is_read_only:
        _answers(queries.commands(run_id))
    branch_form.answers(run_id)
    if settings().is_read_only:
        st.caption("This dashboard is read-only: runs cannot be steered from here.")
    elif why_not_steered(info.config):
        st.caption(plain(why_not_steered(info.config), 300))
    elif not is_live:
        _ended(info)
    elif CommandAction.SET in obeyed_actions(info.config):
        with st.expander("Live settings", key="steering_form", on_change="rerun") as box:
            if box.open:
                _form(run_id, info)
    branch_form.form(run_id)


def _ended(info: RunInfo) -> None:
    text = f"Run {info.status}. It takes no more commands."
    is_ours = origin_of(info.config) is Origin.TRAINED
    if (
        is_ours
        and not Layout(info.path).is_copy
        and info.status in ("stopped", "interrupted", "crashed", "failed")
    ):
        st.caption(f"{text} Continue from its last checkpoint with:")
        ui.command(f"echoscope train --resume {info.path}")
    else:
        st.caption(text)


def _buttons(run_id: str, now: Standing, obeyed: Sequence[CommandAction]) -> None:
    stop = CommandAction.STOP_NOW if now.is_stopping else CommandAction.STOP
    hold = CommandAction.RESUME if now.is_paused else CommandAction.PAUSE
    row = st.container(
        horizontal=True, vertical_alignment="center", key="steering_buttons", gap="xsmall"
    )
    for action in (hold, CommandAction.CHECKPOINT, CommandAction.EVALUATE, stop):
        if action not in obeyed:
            continue
        # Pause and Resume have one place of fixed size: while one takes over from the other, both
        # are on the page for a moment.
        container = row.container(key="steering_hold", width=_BUTTON_PX) if action is hold else row
        is_pressed = container.button(
            _title(action),
            key=f"steer_{action.value}",
            help=_SENTENCES[action],
            on_click=_act if action in _AT_ONCE else propose,
            args=(run_id, action),
            width=_BUTTON_PX,
        )
        if is_pressed and action not in _AT_ONCE:
            st.rerun()  # the question is asked in the panel


def _act(run_id: str, action: CommandAction) -> None:
    """Send a command at once, and remember it, so that the page says what becomes of it."""
    _forget()
    try:
        sent = send_command(run_id, action, {}, question.asker(), "")
    except (SteeringError, Problem) as error:
        st.session_state[_NOT_SENT] = (run_id, str(error))
    else:
        st.session_state[_SENT] = sent


def _forget() -> None:
    st.session_state.pop(_SENT, None)
    st.session_state.pop(_NOT_SENT, None)


def _news(run_id: str, now: Standing, states: Sequence[CommandState]) -> None:
    """What became of the last click, in a line over the page that moves nothing, and its undo."""
    refused_run, why = st.session_state.get(_NOT_SENT, ("", ""))
    sent = st.session_state.get(_SENT)
    state = next((s for s in states if sent and s.command.command_id == sent.command_id), None)
    if refused_run == run_id:
        text, undo = f"Not sent: {why}.", None
    elif state is not None:
        text, undo = news_words(state), undo_of(state, now)
    else:
        return
    with st.container(
        horizontal=True, vertical_alignment="center", key="steering_news", gap="small"
    ):
        st.text(visible(text, 300), width="content")
        if undo is not None:
            st.button("Undo", key="steering_undo", on_click=_act, args=(run_id, undo))
        st.button(":material/close:", key="steering_read", type="tertiary", on_click=_forget)


def news_words(state: CommandState) -> str:
    """What became of a command that was sent at one click: `Paused after step 12 by you.`"""
    action = state.command.action
    pending, done = _AT_ONCE[action]
    if state.ack is None:
        return pending
    if state.ack.outcome is not CommandOutcome.APPLIED:
        detail = f": {state.ack.detail}" if state.ack.detail else ""
        return f"{_title(action)} was {state.ack.outcome.value}{detail}."
    return f"{done} {answered_after(state.ack)} by you."


def undo_of(state: CommandState, now: Standing) -> CommandAction | None:
    """The command that takes another one back, as long as that one holds; None where none can."""
    undo = _UNDONE_BY.get(state.command.action)
    is_refused = state.ack is not None and state.ack.outcome is not CommandOutcome.APPLIED
    if undo is None or is_refused or now.is_stopping:
        return None
    is_pause = state.command.action is CommandAction.PAUSE
    return undo if state.ack is None or now.is_paused is is_pause else None


def send_command(
    run_id: str, action: CommandAction, changes: Mapping[str, Any], author: str, reason: str
) -> Command:
    """Check a command and send it.

    Raises:
        SteeringError: it must not or cannot be sent, with the reason in words.
    """
    info = queries.info(run_id)
    if settings().is_read_only:
        raise SteeringError("this dashboard is read-only")
    command = prepare(info, action, settings=changes, issued_by=author, reason=reason)
    other = same_waiting(queries.commands(run_id), command)
    if other is not None:
        raise SteeringError(
            f"{author_words(other.issued_by) or 'somebody'} asked for the same "
            f"{duration(time.time() - other.issued_at)} ago and it is still pending"
        )
    send(queries.path_of(run_id), command)
    return command


def _preview(run_id: str, changes: Mapping[str, Any]) -> None:
    """`key: value -> new value`, one line each."""
    current = queries.current_settings(run_id)
    lines = [
        f"{key}: {setting_words(current.get(key))} -> {setting_words(value)}"
        for key, value in changes.items()
    ]
    st.code(visible("\n".join(lines), 4000), language=None)
    for warning in setting_warnings(queries.info(run_id), current, changes):
        line("note", "orange", warning)


def _form(run_id: str, info: RunInfo) -> None:
    head = st.container()  # above the settings: what was changed is seen without scrolling
    current = queries.current_settings(run_id)
    changed = knobs.form(run_id, info.live_knobs, current)
    with head:
        if not changed:
            st.caption("The values in force. Change some: what would be sent is shown here.")
            return
        try:
            check_settings(info.live_knobs, changed)
        except SteeringError as error:
            line("not possible", "red", str(error))
            return
        _preview(run_id, changed)
        st.button(
            "Review and send",
            key="steering_review",
            type="primary",
            on_click=propose,
            args=(run_id, CommandAction.SET, changed),
        )


def _answers(states: Sequence[CommandState]) -> None:
    """Everything that waits and the newest answers, whoever asked: here, in a shell, an alarm."""
    now = time.time()
    waiting = [state for state in states if state.ack is None]
    answered = [s for s in states if s.answered_at is not None and now - s.answered_at < _SHOWN_S]
    for state in (*answered[-_MAX_SHOWN:], *waiting):
        command, age = state.command, now - state.command.issued_at
        who = f"{author_words(command.issued_by) or 'somebody'}: {command_words(state)}"
        if state.ack is None:
            since = f"since {duration(age)}, until the next step boundary"
            line("pending", "blue", f"{who} ({since})")
        else:
            when = answered_after(state.ack)
            detail = f", {state.ack.detail}" if state.ack.detail else ""
            line(state.ack.outcome.value, _COLOURS[state.ack.outcome], f"{who} ({when}{detail})")
