"""Diagnosis: why the verdict says what it says, its alarms, and what another filter would do."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle

import streamlit as st

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.marks import run_marks
from echoscope.dashboard.charts.run_figures import FIGURES, draw_figure
from echoscope.dashboard.charts.timeline import TIMELINE_HELP, settings_held, timeline
from echoscope.dashboard.data import diagnosis as data
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.alarm_history import alarm_rows
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures, pulses
from echoscope.dashboard.live.refreshing import follow
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.page.evaluation_box import evaluation_box
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.verdict_box import verdict_box
from echoscope.dashboard.page.whatif_box import whatif_box
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import tokens
from echoscope.dashboard.report import verdict_html
from echoscope.dashboard.report.claim_charts import ClaimChart, claim_charts
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.dashboard.report.telling import EXAMPLES, example_html, telling
from echoscope.dashboard.words import plain
from echoscope.diagnostics.judge.record import Shown, Verdict
from echoscope.diagnostics.measure.text.report import read_record
from echoscope.store.query.alarms import histories
from echoscope.store.records import parse_trajectory_id
from echoscope.store.status import Origin, origin_of
from echoscope.text.amounts import percent
from echoscope.text.sentences import capitalised

KINDS = ("information", "text", "gradients")
STYLE = """<style>
.st-key-examples .es-text { max-height: 9.5rem; overflow-y: auto; }
</style>"""
NUM_FIRST = 3
"""Charts in a row."""
figure_at = queries.kept(draw_figure)
situation = queries.kept(data.situation)


def draw(run_id: str) -> None:
    if evaluation_box(run_id):
        return
    measured = sorted({s for kind in KINDS for s in queries.diagnostic_steps(run_id, kind)})
    upto = _earlier_step(measured)
    verdict = verdict_box(run_id, upto=upto)
    charts = claim_charts(live_charts.snapshot(run_id, verdict=verdict), evidence_rows(verdict))
    with st.container(key="proof"):
        _row_of_claims(run_id, charts[:NUM_FIRST], upto, has_words=False)
    examples(run_id, verdict)
    settings_line(run_id, verdict)
    if verdict.claims or verdict.evidence:
        st.subheader("All claims in numbers", anchor=False)
        for start in range(NUM_FIRST, len(charts), NUM_FIRST):
            _row_of_claims(run_id, charts[start : start + NUM_FIRST], upto, has_words=True)
        st.html(verdict_html.STYLE + verdict_html.grounds(verdict))
    is_moving = ui.is_following(run_id) or queries.is_judging(run_id) or verdict.last_step is None
    if upto is None and is_moving:
        drawn = {"verdict": pulses.verdict_mark(verdict)}
        follow("judged", run_id, ("verdict",), lambda: None, has_news=lambda: True, seen=drawn)
    step = _pick_step(measured) if measured else None
    _figures(run_id, step)
    if step is not None:
        _template(run_id, step)
    _alarms(run_id)
    st.subheader("What another filter would keep", anchor=False)
    whatif_box(run_id, verdict.actions)


def _earlier_step(measured: list[int]) -> int | None:
    """The measured step that the address asks for, if it is not the newest of them."""
    asked = url_state.int_param("step", None)
    if asked is None or not measured:
        return None
    step = _nearest(measured, asked)
    return None if step == measured[-1] else step


def _row_of_claims(
    run_id: str, charts: Sequence[ClaimChart], upto: int | None, *, has_words: bool
) -> None:
    """Charts that prove the verdict, each number with its curve."""
    columns = st.columns(NUM_FIRST, gap="medium")
    for column, chart in zip(columns, charts, strict=False):
        with column:
            alt, key = visible(chart.alt, 600), f"claim_{chart.name}"
            figures.show(chart.spec, alt, key=key, revision=f"{run_id} {upto}")
            if has_words:
                st.caption(plain(capitalised("; ".join(chart.sentences)), 400))


def settings_line(run_id: str, verdict: Verdict) -> None:
    """What was set and when, beside the onset, the alarms and the commands."""
    last_step = queries.info(run_id).last_step
    held = settings_held(situation(run_id), verdict, last_step)
    marks = run_marks(queries.alarms(run_id), queries.commands(run_id), queries.step_table(run_id))
    figure = timeline(held, marks, verdict, last_step)
    if figure is None:
        return
    st.subheader("What was set, and when", anchor=False)
    alt = "; ".join(f"{key}: {', then '.join(v.text for v in held[key])}" for key in held)
    figures.show(figure, visible(alt, 600), key="timeline", revision=run_id)
    st.caption(TIMELINE_HELP)


def examples(run_id: str, verdict: Verdict) -> None:
    """Three trajectories that show the verdict, as text, each with a link."""
    last = verdict.last_step or 0
    steps = queries.trajectory_steps(run_id)
    if not steps and verdict.last_step is not None:
        st.caption(
            "This run has metrics and no rollouts. How the reasoning depends on the prompt cannot "
            "be seen without the text."
        )
    with_text = [step for step in steps if step <= last]
    places, reason = telling(verdict, queries.listing(run_id, with_text[-1] if with_text else last))
    if not places:
        return
    if reason:
        st.caption(f"{capitalised(reason)}, step {step_of(places[0])}")
    st.html(tokens.STYLE + replay_html.STYLE + STYLE)
    columns = st.container(key="examples").columns(EXAMPLES, gap="medium")
    for column, example in zip(columns, places, strict=False):
        with column:
            _example(run_id, example)


def step_of(example: Shown) -> int:
    return parse_trajectory_id(example.trajectory_id)[1]


def _example(run_id: str, example: Shown) -> None:
    identity, turn_index = example.trajectory_id, example.turn
    links.link(
        f"Step {step_of(example)}, turn {turn_index}: {identity}",
        "replay",
        run=run_id,
        trajectory=identity,
        turn=turn_index,
    )
    try:
        trajectory = queries.trajectory(run_id, identity)
    except Problem as problem:
        st.caption(plain(problem.text, 300))
        return
    if turn_index >= len(trajectory.turns):
        st.caption("The turn cannot be read: a file of this step is missing or damaged.")
        return
    turn = trajectory.turns[turn_index]
    st.html(example_html(turn, example))
    if example.note:
        st.caption(plain(example.note, 200))


def _pick_step(measured: list[int]) -> int:
    """The measured step nearest to the one in the address; moving the slider changes that."""
    asked = url_state.int_param("step", measured[-1])
    near = _nearest(measured, measured[-1] if asked is None else asked)
    if len(measured) == 1:
        return measured[0]
    if st.session_state.get("diagnosis_step") not in measured or asked not in (near, None):
        st.session_state["diagnosis_step"] = near

    def moved() -> None:
        st.query_params["step"] = str(st.session_state["diagnosis_step"])

    step = st.select_slider("Step", options=measured, key="diagnosis_step", on_change=moved)
    return int(step)


def _nearest(steps: list[int], target: int) -> int:
    return min(steps, key=lambda step: abs(step - target))


def _figures(run_id: str, step: int | None) -> None:
    """The figures that the run has data for, two in a row; the others by name."""
    missing = []
    columns = cycle(st.columns(2, gap="medium"))
    for name, figure in FIGURES.items():
        drawn = figure_at(run_id, name, step)
        if drawn is None:
            missing.append(figure.title)
            continue
        with next(columns):
            st.subheader(figure.title, anchor=False)
            figures.show(drawn, figure.title, key=name, revision=run_id)
            st.caption(figure.help)
    if missing:
        st.caption(f"Not measured in this run: {'; '.join(missing)}. {_way_to_measure(run_id)}")


def _way_to_measure(run_id: str) -> str:
    """What would measure how the reasoning depends on its prompt."""
    if origin_of(queries.info(run_id).config) is Origin.TRAINED:
        return "A run measures its reasoning unless diagnostics.enabled is false."
    return (
        "I(X;Z) and H(Z|X) need the model's weights, and only the other trainer has them. To "
        "measure them, record the training with policy= (docs/recorder.md)."
    )


def _template(run_id: str, step: int) -> None:
    record = queries.diagnostic_near(run_id, "text", step)
    template = None if record is None else read_record(record.payload).template
    if record is None or template is None:
        return
    st.subheader("Most common reasoning template", anchor=False)
    st.code(visible(template.text, 1000), language=None, wrap_lines=True)
    st.caption(
        f"Step {record.step}: {percent(template.match_frac)} of the reasonings of the first turns "
        f"share this template. {percent(template.coverage)} of its words are fixed. Slots hold:"
    )
    for number, slot in enumerate(template.fillers[:6], start=1):
        st.text(f"slot {number}: {visible(' | '.join(slot[:6]), 300)}")


def _alarms(run_id: str) -> None:
    """What was raised, since when, and what ended it."""
    raised = histories(queries.alarms(run_id), queries.commands(run_id))
    st.subheader("Alarms", anchor=False)
    if not raised:
        is_imported = origin_of(queries.info(run_id).config) is Origin.IMPORTED
        st.caption(
            "None was raised."
            + " Alarms are raised while a training runs; this run was imported." * is_imported
        )
        return
    st.html(verdict_html.table(alarm_rows(raised)))


ui.run_frame("Diagnosis", draw)
