"""Alarms: what was raised, since when, what was done, and who has seen it."""

from __future__ import annotations

import time

import streamlit as st

from echoscope.dashboard.charts.alarm_timeline import timeline
from echoscope.dashboard.charts.marks import command_words, outcome_words
from echoscope.dashboard.charts.theme import SEVERITY_TONES
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.alarm_history import AlarmHistory, histories
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.page import links, ui
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import plain
from echoscope.store.records import AlarmSeverity
from echoscope.store.status import Origin, after_step, origin_of
from echoscope.store.steer.annotations import Acknowledge, Snooze, annotate, read_annotations
from echoscope.store.steer.steering import os_user
from echoscope.text.amounts import counted, duration

STANDINGS = ("open", "acknowledged", "snoozed", "cleared")
SEVERITIES = tuple(severity.value for severity in reversed(AlarmSeverity))
SNOOZES = {"an hour": 3600.0, "a day": 86_400.0}


def draw(run_id: str) -> None:
    notes = read_annotations(queries.path_of(run_id)).alarms
    found = histories(queries.alarms(run_id), queries.commands(run_id), notes)
    if not found:
        _none(run_id)
        _unseen(run_id)
        return
    info = queries.info(run_id)
    figures.show(
        timeline(found, info.last_step), "Alarms over the run", key="alarms", revision=run_id
    )
    left, right = st.columns(2)
    standings = left.pills(
        "Status",
        STANDINGS,
        default=STANDINGS,
        selection_mode="multi",
        key="standing",
        bind="query-params",
    )
    severities = right.pills(
        "Severity",
        SEVERITIES,
        default=SEVERITIES,
        selection_mode="multi",
        key="severity",
        bind="query-params",
    )
    now = time.time()
    shown = [one for one in found if one.severity in severities and one.standing(now) in standings]
    st.caption(f"{len(shown)} of {len(found)} alarms")
    for one in shown[:100]:
        _card(run_id, one, now)
    _unseen(run_id)


def _none(run_id: str) -> None:
    """No alarm was raised: because nothing was wrong, or because nobody watched."""
    if origin_of(queries.info(run_id).config) is Origin.IMPORTED:
        ui.empty(
            "Alarms are raised while a training runs. This run was imported afterwards, so it has "
            "none; what its data show is in the verdict on the page Diagnosis."
        )
        links.link("Diagnosis", "diagnosis", run=run_id)
        return
    ui.empty(
        "No alarm was raised in this run. Alarms raised afterwards from what is stored are in "
        "the verdict:",
        f"echoscope diagnose {queries.typed(run_id)}",
    )


def _card(run_id: str, one: AlarmHistory, now: float) -> None:
    alarm = one.latest
    with st.container(border=True):
        line = st.container(horizontal=True, vertical_alignment="center")
        colour = SEVERITY_TONES[one.severity] if one.is_open else "gray"
        line.badge(one.severity_words, color=colour)
        line.markdown(f"**{plain(alarm.rule)}**")
        line.caption(_when(one))
        standing = one.standing(now)
        if one.is_open:
            line.badge(standing, color="blue" if standing == "open" else "gray")
        st.text(visible(alarm.message, 1500))
        if one.ending:
            st.text(visible(one.ending, 1500))
        advice = queries.alarm_advice(run_id, alarm, is_open=one.is_open)
        if advice.text:
            st.caption(plain(advice.text, 800))
        if advice.command:
            ui.command(advice.command)
        for state in one.done:
            st.text(f"Command of the alarm: {command_words(state)} ({outcome_words(state)}).")
        if alarm.refuted_by and one.is_open:
            st.caption(plain(f"This alarm is false if: {alarm.refuted_by}", 600))
        _links(run_id, one)
        _note(run_id, one, standing)


def _when(one: AlarmHistory) -> str:
    raised = one.raised
    words = f"raised {after_step(raised.step)}"
    if raised.onset_step is not None and raised.onset_step != raised.step:
        words += f", began about step {raised.onset_step}"
    if one.cleared_step is not None:
        words += f", cleared {after_step(one.cleared_step)}"
    return words


def _links(run_id: str, one: AlarmHistory) -> None:
    row = st.container(horizontal=True, vertical_alignment="center")
    with row:
        step = one.raised.step
        links.link("Diagnosis at this step", "diagnosis", run=run_id, step=step)
        if one.latest.evidence:
            st.caption("Evidence:")
        for trajectory in one.latest.evidence[:6]:
            links.link(trajectory, "replay", run=run_id, trajectory=trajectory)


def _note(run_id: str, one: AlarmHistory, standing: str) -> None:
    note, alarm_id = one.note, one.latest.alarm_id
    if note.is_acknowledged:
        st.caption(plain(f"Acknowledged by {note.acknowledged_by or 'somebody'}."))
    if standing == "snoozed" and note.snoozed_until is not None:
        left = duration(note.snoozed_until - time.time())
        st.caption(plain(f"Snoozed by {note.snoozed_by or 'somebody'} for another {left}."))
    if settings().is_read_only or not one.is_open:
        return
    path = queries.path_of(run_id)

    def acknowledge() -> None:
        change = Acknowledge(
            author=os_user(),
            at=time.time(),
            alarm_id=alarm_id,
            is_acknowledged=not note.is_acknowledged,
        )
        ui.noting(lambda: annotate(path, change))

    def snooze(seconds: float | None) -> None:
        now = time.time()
        until = None if seconds is None else now + seconds
        change = Snooze(author=os_user(), at=now, alarm_id=alarm_id, until=until)
        ui.noting(lambda: annotate(path, change))

    row = st.container(horizontal=True)
    words = "Take back" if note.is_acknowledged else "Acknowledge"
    row.button(words, key=f"ack {alarm_id}", on_click=acknowledge)
    if standing == "snoozed":
        row.button("Wake", key=f"wake {alarm_id}", on_click=snooze, args=(None,))
    else:
        for name, seconds in SNOOZES.items():
            row.button(
                f"Snooze {name}", key=f"snooze {alarm_id} {name}", on_click=snooze, args=(seconds,)
            )


def _unseen(run_id: str) -> None:
    """Rules that cannot speak about this run, and why."""
    verdict = queries.verdict(run_id)
    if verdict.could_not_see:
        words = counted(len(verdict.could_not_see), "check")
        with st.expander(f"{words} skipped: a metric is missing"):
            for text in verdict.could_not_see:
                st.text(visible(text, 400))


def main() -> None:
    ui.run_frame("Alarms", draw)


main()
