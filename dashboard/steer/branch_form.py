"""A new run from a checkpoint: the form, and what became of branches that were started here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import streamlit as st

from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.store.reader import RunInfo
from echoscope.store.status import after_step
from echoscope.store.steer.steering import SteeringError, override_words, why_no_branch
from echoscope.text.amounts import duration

from ..data import queries
from ..escaping import visible
from ..page import ui
from ..page.lineage import open_button
from ..page.problems import Problem
from ..web.settings import settings
from ..words import plain, setting_words
from . import question
from .branching import BranchOrder, Launch, check, launch, launches, settings_at
from .question import SteeringDraft, line

MAX_LINES = 4_000
MAX_STEPS = 1_000_000_000
MAX_SHOWN = 5
"""Branches that were started here."""
_SHOWN_S = 600.0
"""How long a branch that was started here stays beside the form."""


def preset(run_id: str, changes: Mapping[str, Any]) -> None:
    """Fill in the form for the next time that the page Live is drawn, and open it."""
    st.session_state["branch_form"] = True
    ui.open_panel()
    st.session_state[_lines_key(run_id)] = "\n".join(override_words(changes))


def suggest(run_id: str, step: int | None, changes: Mapping[str, Any], reason: str) -> None:
    """Fill in the form with what a verdict advises, and ask for the one confirmation.

    Args:
        step: Of the checkpoint; None for the last good one.
    """
    checkpoint_step = queries.last_good(run_id).step if step is None else step
    preset(run_id, changes)
    try:
        if checkpoint_step is None:
            raise SteeringError("the run has no checkpoint from before the change")
        parent = queries.path_of(run_id)
        config = settings_at(parent, checkpoint_step)
        st.session_state[_at_key(run_id)] = checkpoint_step
        steps = _steps_word(config, _last_step(config, checkpoint_step))
        settings_typed = (*steps, *override_words(changes))
        order = BranchOrder(parent=parent, checkpoint=checkpoint_step, settings=settings_typed)
        check(order, settings().root, config, queries.info(run_id).live_knobs)
    except (SteeringError, Problem) as error:
        question.refuse("not started", str(error))
        return
    _propose(run_id, order, config, reason)


def form(run_id: str) -> None:
    """The form for a new branch; or why a page may not start one."""
    no_weights = why_no_branch(queries.info(run_id).config)
    if no_weights:
        st.caption(no_weights)
        return
    with st.expander("Branch from a checkpoint", key="branch_form", on_change="rerun") as box:
        if not box.open:
            return
        why = _forbidden()
        if why:
            st.caption(f"{why} In a terminal:")
            ui.command(f"echoscope ctl {queries.typed(run_id)} branch KEY=VALUE ...")
            return
        _form(run_id, queries.info(run_id))


def _forbidden() -> str:
    if settings().is_read_only:
        return "This dashboard is read-only: no branches are started from here."
    if not settings().may_branch:
        return "This dashboard was started with --no-branch."
    return ""


def _at_key(run_id: str) -> str:
    return f"branch_at:{run_id}"


def _lines_key(run_id: str) -> str:
    return f"branch_lines:{run_id}"


def _form(run_id: str, info: RunInfo) -> None:
    st.caption(
        "A new run that goes on from a checkpoint of this one, with other settings. "
        "This run stays as it is; the new one trains on when the dashboard is closed."
    )
    steps = [checkpoint.step for checkpoint in reversed(queries.checkpoints(run_id))]
    if not steps:
        is_live = info.status == "running"
        way = f"echoscope ctl {queries.typed(run_id)} checkpoint" if is_live else ""
        ui.empty("The run has no checkpoint yet.", way)
        return
    good = queries.last_good(run_id)
    if good.step is None:
        line("no good checkpoint", "orange", f"{good.reason} The newest one is chosen.")
    if st.session_state.get(_at_key(run_id)) not in steps:
        st.session_state[_at_key(run_id)] = steps[0] if good.step is None else good.step
    columns = st.columns(3)
    checkpoint_step = columns[0].selectbox(
        "Checkpoint after step",
        steps,
        key=_at_key(run_id),
        format_func=lambda step: f"{step} (last good)" if step == good.step else str(step),
        help=plain(good.reason, 400),
    )
    try:
        config = settings_at(queries.path_of(run_id), checkpoint_step)
    except SteeringError as error:
        line("not possible", "red", str(error))
        return
    name = columns[1].text_input(
        "Name",
        key=f"branch_name:{run_id}",
        max_chars=100,
        placeholder=visible(str(config.get("name", "")), 100),
    )
    until = columns[2].number_input(
        "Train until step",
        checkpoint_step + 1,
        MAX_STEPS,
        _last_step(config, checkpoint_step),
        key=f"branch_until:{run_id}:{checkpoint_step}",
        help="Steps are counted on from the checkpoint.",
    )
    lines = st.text_area(
        "Other settings, KEY=VALUE, one a line",
        key=_lines_key(run_id),
        max_chars=MAX_LINES,
        placeholder="optim.lr=1e-4",
    )
    typed = (word.strip() for word in (lines or "").splitlines())
    order = BranchOrder(
        parent=queries.path_of(run_id),
        checkpoint=checkpoint_step,
        settings=(*_steps_word(config, int(until)), *filter(None, typed)),
        name=(name or "").strip(),
    )
    try:
        check(order, settings().root, config, info.live_knobs)
    except SteeringError as error:
        line("not possible", "red", str(error))
        return
    st.code(_preview(config, order), language=None, wrap_lines=True)
    if st.button("Review and start", key="branch_review", type="primary"):
        _propose(run_id, order, config)
        st.rerun()  # the question stands above the form


def _last_step(config: Mapping[str, Any], checkpoint: int) -> int:
    """As planned; as many steps again where the plan was fulfilled."""
    planned = config.get("steps")
    steps = planned if isinstance(planned, int) else checkpoint + 1
    last = steps if steps > checkpoint else checkpoint + max(steps, 1)
    return max(checkpoint + 1, min(last, MAX_STEPS))


def _steps_word(config: Mapping[str, Any], until: int) -> tuple[str, ...]:
    return () if config.get("steps") == until else (f"steps={until}",)


def _preview(config: Mapping[str, Any], order: BranchOrder) -> str:
    """`key: value -> new value`, one line each, under where it starts and what it is called."""
    before = Situation(config=config)
    lines = [f"{order.parent.name} {after_step(order.checkpoint)}"]
    if order.name:
        lines.append(f"name: {config.get('name')} -> {order.name}")
    for word in order.settings:
        key, _, new = (part.strip() for part in word.partition("="))
        lines.append(f"{key}: {setting_words(before.setting(key))} -> {new}")
    return visible("\n".join(lines), MAX_LINES)


def _propose(run_id: str, order: BranchOrder, config: Mapping[str, Any], reason: str = "") -> None:
    """Ask for confirmation of an order that fits the run."""
    question.propose(
        SteeringDraft(
            run_id=run_id,
            question="**Start this branch?** It trains on this machine, beside other runs.",
            button="start the branch",
            show=lambda: st.code(_preview(config, order), language=None, wrap_lines=True),
            do=lambda author, why: start(order, author, why),
            failure="not started",
            reason=reason,
            use_of_reason="Kept with the new run",
        )
    )


def start(order: BranchOrder, author: str, reason: str) -> Launch:
    """Start a branch, if this dashboard may.

    Raises:
        SteeringError: it may not, or the branch cannot be started.
    """
    why = _forbidden()
    if why:
        raise SteeringError(why)
    return launch(replace(order, reason=reason, author=author), settings().root)


def answers(run_id: str) -> None:
    """Branches of this run that were started here lately, whoever asked; follows them."""
    recent = [
        begun
        for begun in launches(queries.path_of(run_id))[:MAX_SHOWN]
        if time.time() - begun.started < _SHOWN_S
    ]
    is_pending = any(begun.report().is_starting for begun in recent)

    @st.fragment(run_every="1s" if is_pending else None, key="branch_started")
    def part() -> None:
        reports = [launched.report() for launched in recent]
        if is_pending and not any(report.is_starting for report in reports):
            st.rerun()  # all have answered: no beat any more
        for launched, report in zip(recent, reports, strict=True):
            age = duration(time.time() - launched.started)
            who = f"{launched.order.author or 'somebody'}, {age} ago"
            if report.run_id:
                with line("branched", "green", f"{who}: {report.run_id}"):
                    open_button("Open the new run", report.run_id)
            elif report.problem:
                line("refused", "red", f"{who}: {report.problem}")
            else:
                line("starting", "blue", f"{who}: a branch {after_step(launched.order.checkpoint)}")

    if recent:
        part()
