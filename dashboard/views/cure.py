"""Cure: treatments of a collapsed run, compared as branches; one of them goes on by one click."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.dashboard.charts.evaluations import cure_figure
from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import links, ui
from echoscope.dashboard.steer import curing, question
from echoscope.dashboard.steer.branching import BranchError
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import plain
from echoscope.diagnostics.judge.proposals import Proposals, proposals_of
from echoscope.diagnostics.tools.curing import (
    HELD,
    Standing,
    cure_of,
    standing,
    success_of,
    table,
)
from echoscope.store.errors import StoreError
from echoscope.store.reader import RunReader
from echoscope.store.steer.cures import Cure, is_being_cured, read_cure
from echoscope.store.steer.steering import override_words, why_no_branch
from echoscope.text.amounts import percent

EVERY_S = 3.0
UNTREATED = "untreated"
_COLUMNS: dict[str, Any] = {
    "treatment": st.column_config.TextColumn("Treatment", help="What the branch changes."),
    "from": st.column_config.NumberColumn("From", help="The checkpoint that it starts at."),
    "steps": st.column_config.NumberColumn("Steps", help="Trained since the checkpoint."),
    "success": st.column_config.TextColumn(
        "Success", help="Mean over the last third of these steps, on the fixed tasks."
    ),
    "why": st.column_config.TextColumn("Why", help="What the treatment rests on."),
    "state": st.column_config.TextColumn("State"),
}


@queries.kept
def proposed(run: RunReader) -> Proposals:
    """What the diagnosis proposes for the run as it stands."""
    return proposals_of(run)


@queries.kept
def stand_of(run: RunReader, checkpoint: int) -> Standing:
    """How a run does since a checkpoint."""
    return standing(run, checkpoint)


@queries.kept
def best_of(run: RunReader) -> float:
    """The best success of a run."""
    rates = [rate for rate in success_of(run).values() if math.isfinite(rate)]
    return max(rates, default=math.nan)


def draw(run_id: str) -> None:
    info = queries.info(run_id)
    links.link("Diagnosis", "diagnosis", run=run_id)
    why = why_no_branch(info.config)
    if why:
        ui.empty(why)
        return
    path = queries.path_of(run_id)

    def is_moving() -> bool:
        return is_being_cured(path) or curing.is_starting(path)

    was_moving = is_moving()
    every_s = EVERY_S if was_moving else None
    beat("cure", every_s, lambda: _part(run_id), has_news=lambda: is_moving() != was_moving)


def _part(run_id: str) -> None:
    path = queries.path_of(run_id)
    try:
        cure = read_cure(path)
    except StoreError as error:
        ui.empty(str(error))
        return
    is_busy = is_being_cured(path) or curing.is_starting(path)
    if is_busy and (cure is None or not cure.chosen):
        who = "Somebody" if cure is None or not cure.by else cure.by
        st.caption(plain(f"{who} compares treatments now; the page follows.", 200))
    elif trouble := curing.last_words(path):
        st.warning(plain(trouble, 500))
    if cure is None:
        _proposals(run_id)
    else:
        _comparison(run_id, cure, is_busy=is_busy)


def _proposals(run_id: str) -> None:
    """What can be tried, and the button that tries it."""
    proposals = proposed(run_id)
    if not proposals.treatments:
        ui.empty(proposals.why_none)
        return
    cure = cure_of(queries.path_of(run_id), proposals, by="", steps=1)
    st.text(
        "These treatments may cure the run. Each is tried as a short branch from the last healthy "
        "checkpoint; this run is not touched."
    )
    _table(run_id, cure)
    if curing.is_starting(queries.path_of(run_id)):
        return
    if settings().is_read_only or not settings().may_branch:
        st.caption("This dashboard starts no branches. In a terminal:")
        ui.command(f"echoscope cure {queries.typed(run_id)}")
        return
    row = st.container(horizontal=True, vertical_alignment="bottom")
    steps = row.number_input(
        "Steps of each branch", 4, curing.MAX_STEPS, 30, help="Losers are stopped half way."
    )
    minutes = row.number_input("Minutes for all", 1, curing.MAX_MINUTES, 60)
    if row.button("Compare these treatments", type="primary", key="cure_compare"):
        _do(
            lambda: curing.compare(
                queries.path_of(run_id),
                steps=int(steps),
                minutes=int(minutes),
                author=question.author(),
            )
        )


def _comparison(run_id: str, cure: Cure, *, is_busy: bool) -> None:
    path = queries.path_of(run_id)
    best = best_of(run_id)
    chosen = next((arm for arm in cure.arms if arm.run_id == cure.chosen and cure.chosen), None)
    stands = {UNTREATED: stand_of(run_id, min(arm.checkpoint for arm in cure.arms))}
    for arm in cure.arms:
        if arm.run_id and ui.exists(arm.run_id):
            stands[_label(arm.settings)] = stand_of(arm.run_id, arm.checkpoint)
    figure = cure_figure(
        stands, untreated=UNTREATED, chosen=_label(chosen.settings) if chosen else ""
    )
    figures.show(figure, "Success of each treatment since the checkpoint", key="cure_chart")
    if best == best:
        st.caption(
            f"A treatment holds from {percent(HELD * best)} on: {percent(HELD)} of the best "
            f"success of the untreated run, {percent(best)}."
        )
    _table(run_id, cure)
    if chosen is not None:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.badge("successor", color="green")
            st.text(visible(f"{cure.chosen_by or 'Somebody'} chose {chosen.run_id}.", 300))
            links.link("Open that run", "live", run=chosen.run_id)
        return
    if is_busy or settings().is_read_only or not settings().may_branch:
        return
    with st.container(horizontal=True, key="cure_choices"):
        for number, arm in enumerate(cure.arms, 1):
            if not arm.run_id or not ui.exists(arm.run_id):
                continue
            level = stand_of(arm.run_id, arm.checkpoint).level
            label = f"Go on with {number} ({percent(level)})"
            if st.button(plain(label), key=f"cure_promote_{number}"):
                _do(partial(curing.promote, path, arm.run_id, author=question.author()))
    if not all(arm.run_id or arm.ended for arm in cure.arms) and st.button(
        "Go on comparing", key="cure_resume"
    ):
        minutes = 60
        _do(
            lambda: curing.compare(
                path, steps=cure.steps, minutes=minutes, author=question.author()
            )
        )


def _table(run_id: str, cure: Cure) -> None:
    rows = [
        {
            "treatment": f"{row['number']}: {_label(row['settings'])}"
            if row["number"]
            else UNTREATED,
            "from": row["checkpoint"],
            "steps": row["num_steps"],
            "success": percent(row["success"]),
            "state": "chosen" if row["is_chosen"] else row["ended"],
            "why": visible(f"{row['why']} {row['rate']}".strip(), 400),
        }
        for row in table(queries.path_of(run_id), cure, stand_of)
    ]
    st.dataframe(pd.DataFrame(rows), column_config=_COLUMNS, hide_index=True)


def _label(changes: Any) -> str:
    return visible(" ".join(override_words(changes)), 80) or UNTREATED


def _do(act: Callable[[], None]) -> None:
    try:
        act()
    except BranchError as error:
        st.error(plain(str(error), 500))
        return
    st.rerun()


ui.run_frame("Cure", draw)
