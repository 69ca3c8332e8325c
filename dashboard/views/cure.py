"""Cure: treatments of a collapsed run, compared as branches; one of them goes on by one click."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts.evaluations import cure_colors, cure_figure
from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import escape, visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import links, ui
from echoscope.dashboard.steer import curing, question
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import plain
from echoscope.diagnostics.tools.curing import (
    HELD,
    best_success,
    cure_of,
    is_compared,
    proposed,
    standing,
    table,
)
from echoscope.store.errors import StoreError
from echoscope.store.steer.cures import Cure, is_being_cured, read_cure
from echoscope.store.steer.steering import SteeringError, override_words, why_no_branch
from echoscope.text.amounts import counted, percent

EVERY_S = 3.0
DEFAULT_MINUTES = 60
UNTREATED = "untreated"
_NUMBER_PX = 180


proposals_of = queries.kept(proposed)
stand_of = queries.kept(standing)
best_of = queries.kept(best_success)


def draw(run_id: str) -> None:
    info = queries.info(run_id)
    why = why_no_branch(info.config)
    if why:
        ui.empty(why)
        return
    was_moving = _is_moving(run_id)
    every_s = EVERY_S if was_moving else None
    beat("cure", every_s, lambda: _part(run_id), has_news=lambda: _is_moving(run_id) != was_moving)


def _is_moving(run_id: str) -> bool:
    path = queries.path_of(run_id)
    return is_being_cured(path) or curing.is_starting(path)


def _part(run_id: str) -> None:
    path = queries.path_of(run_id)
    try:
        cure = read_cure(path)
    except StoreError as error:
        ui.empty(str(error))
        return
    is_busy = _is_moving(run_id)
    if is_busy and (cure is None or not cure.chosen):
        who = "Somebody" if cure is None or not cure.by else cure.by
        st.caption(plain(f"{who} compares treatments now; the page follows.", 200))
    elif trouble := curing.last_words(path):
        st.warning(plain(trouble, 500))
    may_branch = settings().may_branch and not settings().is_read_only
    if cure is None:
        _proposals(run_id, may_branch=may_branch)
    else:
        _comparison(run_id, cure, may_choose=may_branch and not is_busy)


def _proposals(run_id: str, *, may_branch: bool) -> None:
    """What can be tried, and the button that tries it."""
    proposals = proposals_of(run_id)
    if not proposals.treatments:
        ui.empty(proposals.why_none)
        return
    path = queries.path_of(run_id)
    cure = cure_of(path, proposals, by="", steps=1)
    st.text(
        "These treatments may cure the run. Each is tried as a short branch from the last healthy "
        "checkpoint; this run is not touched."
    )
    for arm in table(path, cure, stand_of):
        if arm["number"]:
            _treatment(arm)
    if curing.is_starting(path):
        return
    if not may_branch:
        st.caption("This dashboard starts no branches. In a terminal:")
        ui.command(f"echoscope cure {queries.typed(run_id)}")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom")
    steps = row.number_input(
        "Steps of each branch",
        4,
        curing.MAX_STEPS,
        30,
        help="Losers are stopped half way.",
        width=_NUMBER_PX,
    )
    minutes = row.number_input(
        "Minutes for all", 1, curing.MAX_MINUTES, DEFAULT_MINUTES, width=_NUMBER_PX
    )
    if row.button("Compare these treatments", type="primary", key="cure_compare"):
        _compare(path, int(steps), int(minutes))


def _comparison(run_id: str, cure: Cure, *, may_choose: bool) -> None:
    path = queries.path_of(run_id)
    best = best_of(run_id)
    chosen = next((arm for arm in cure.arms if arm.run_id == cure.chosen and cure.chosen), None)
    stands = {UNTREATED: stand_of(run_id, min(arm.checkpoint for arm in cure.arms))}
    for number, arm in enumerate(cure.arms, 1):
        if arm.run_id and ui.exists(arm.run_id):
            stands[_label(number, arm.settings)] = stand_of(arm.run_id, arm.checkpoint)
    label_of_chosen = "" if chosen is None else _label(cure.arms.index(chosen) + 1, chosen.settings)
    figure = cure_figure(stands, untreated=UNTREATED, chosen=label_of_chosen, holds=HELD * best)
    figures.show(figure, "Success of each treatment since the checkpoint", key="cure_chart")
    if chosen is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge("successor", color="green")
            st.text(visible(f"{cure.chosen_by or 'Somebody'} chose {chosen.run_id}.", 300))
            links.link("Open that run", "live", run=chosen.run_id)
    for row in table(path, cure, stand_of):
        label = _label(row["number"], row["settings"])
        box = _treatment(row, cure_colors([*stands]).get(label, ""))
        if not row["number"]:
            continue
        arm = cure.arms[row["number"] - 1]
        may_go_on = may_choose and chosen is None and arm.run_id and ui.exists(arm.run_id)
        if may_go_on and box.button(
            f"Go on with {row['number']}", key=f"cure_promote_{row['number']}"
        ):
            _do(partial(curing.promote, path, arm.run_id, author=question.asker()))
    is_complete = chosen is not None or is_compared(path, cure)
    if may_choose and not is_complete and st.button("Go on comparing", key="cure_resume"):
        _compare(path, cure.steps, DEFAULT_MINUTES)


def _treatment(row: Mapping[str, Any], color: str = "") -> DeltaGenerator:
    """What a branch changes, how it does, and why it is tried; the line where a button may stand.

    Args:
        row: Of `table`.
        color: Of its curve; empty where there is none.
    """
    title = _label(row["number"], row["settings"])
    facts = []
    if row["num_steps"]:
        facts = [f"{percent(row['success'])} after {counted(row['num_steps'], 'step')}"]
    facts += ["chosen"] if row["is_chosen"] else [row["ended"]] if row["ended"] else []
    why = f"{row['why']} {row['rate']}".strip().replace("`", "")
    swatch = f'<span style="color:{color}">\u25a0</span> ' if color else ""
    with st.container(border=True, key=f"cure_arm_{row['number']}"):
        line = st.container(horizontal=True, vertical_alignment="center", gap="small")
        line.html(
            f"<div>{swatch}<b>{escape(title, 120)}</b> &ensp;{escape('; '.join(facts), 300)}"
            f'<div style="opacity:.75;font-size:.875rem">{escape(why, 600)}</div></div>',
            width="stretch",
        )
    return line


def _label(number: int, changes: Any) -> str:
    """Of a treatment; number 0 is the run itself."""
    if not number:
        return UNTREATED
    return visible(f"{number} {' '.join(override_words(changes))}", 80)


def _compare(path: Path, steps: int, minutes: int) -> None:
    _do(partial(curing.compare, path, steps=steps, minutes=minutes, author=question.asker()))


def _do(act: Callable[[], None]) -> None:
    try:
        act()
    except SteeringError as error:
        st.error(plain(str(error), 500))
        return
    st.rerun()


def beside(run_id: str) -> None:
    with st.container(horizontal=True, horizontal_alignment="right"):
        links.link("Diagnosis", "diagnosis", run=run_id)


ui.run_frame("Cure", draw, beside=beside)
