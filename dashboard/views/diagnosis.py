"""Diagnosis: why the verdict says what it says, and what another filter would do."""

from __future__ import annotations

import math

import pandas as pd
import streamlit as st

from echoscope.dashboard.charts import diagnosis as charts
from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.curated import EVIDENCE
from echoscope.dashboard.data import diagnosis as data
from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import cut, visible
from echoscope.dashboard.labels import value_words
from echoscope.dashboard.live import figures, pulses
from echoscope.dashboard.live.refreshing import follow
from echoscope.dashboard.page import links, ui, url_state
from echoscope.dashboard.page.problems import Problem
from echoscope.dashboard.page.verdict_box import verdict_box
from echoscope.dashboard.page.whatif_box import whatif_box
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import tokens
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.dashboard.report.telling import EXAMPLES, telling
from echoscope.dashboard.report.verdict_html import lists
from echoscope.dashboard.words import NONE, plain
from echoscope.diagnostics.judge.record import Shown, Verdict
from echoscope.diagnostics.measure.text.report import read_record
from echoscope.store.records import DiagnosticRecord, parse_trajectory_id
from echoscope.store.status import Origin, origin_of
from echoscope.text.sentences import capitalised

TIERS = (
    ("text/retrieval_accuracy", "prompt identified (text)"),
    ("info/first_turn/retrieval_accuracy@1", "prompt identified (model)"),
    ("text/dependence", "dependence / threshold (text)"),
    ("info/first_turn/dependence", "dependence / threshold (model)"),
)
MODEL_ELSEWHERE = (
    "I(X;Z) and H(Z|X) need the model's weights, and only the other trainer has them. The verdict "
    "uses measures of the text instead. To measure them, record the training with policy= "
    "(docs/recorder.md)."
)
EXAMPLE_CHARS = 900
STYLE = """<style>
.st-key-examples .es-text { max-height: 9.5rem; overflow-y: auto; }
</style>"""


def draw(run_id: str) -> None:
    measured = _measured_steps(run_id)
    upto = _earlier_step(measured)
    verdict = verdict_box(run_id, upto=upto)
    proof(run_id, verdict, upto)
    examples(run_id, verdict)
    _why(verdict)
    drawn = {"verdict": pulses.verdict_mark(verdict)}
    is_moving = ui.is_following(run_id) or queries.is_judging(run_id) or verdict.last_step is None
    if upto is None and is_moving:
        follow("judged", run_id, ("verdict",), lambda: None, has_news=lambda: True, seen=drawn)
    steps, text_steps, gradient_steps = (queries.diagnostic_steps(run_id, k) for k in KINDS)
    if not measured:
        _not_measured(run_id)
        _groups(run_id)
        return
    step = _pick_step(measured)
    left, right = st.columns(2, gap="medium")
    with left:
        _regimes(run_id, step)
    with right:
        _information(run_id, _nearest(steps, step))
    left, right = st.columns(2, gap="medium")
    with left:
        _template(run_id, _nearest(text_steps, step))
    with right:
        _tiers(run_id)
    left, right = st.columns(2, gap="medium")
    with left:
        _groups(run_id)
    with right:
        st.subheader("What another filter would keep", anchor=False)
        whatif_box(run_id, verdict.actions)
    _gradients(run_id, _nearest(gradient_steps, step))


def _not_measured(run_id: str) -> None:
    """Why nothing is stored of the reasoning, and what would tell."""
    info = queries.info(run_id)
    if origin_of(info.config) is Origin.TRAINED:
        ui.empty(
            "This run has no measurement of its reasoning. A run measures its reasoning unless "
            "diagnostics.enabled is false. To judge the stored text now:",
            f"echoscope diagnose {queries.typed(run_id)}",
        )
    elif not queries.trajectory_steps(run_id):
        ui.empty(
            "This run has metrics and no rollouts. The verdict rests on the metrics alone; how the "
            "reasoning depends on the prompt cannot be seen without the text."
        )
    else:
        ui.empty(
            "The verdict above is judged from the text and the rewards of the rollouts. "
            + MODEL_ELSEWHERE
        )


KINDS = ("information", "text", "gradients")
SHARE = "gradient/trajectory/max_share"
EVERY = "diagnostics.gradient.every"
GRADIENT_EVERY = 5  # a cadence to suggest: often enough for a curve, rare enough to be cheap


def _measured_steps(run_id: str) -> list[int]:
    """Steps at which anything of the reasoning or the gradient was measured, in order."""
    return sorted({step for kind in KINDS for step in queries.diagnostic_steps(run_id, kind)})


def _earlier_step(measured: list[int]) -> int | None:
    """The measured step that the address asks for, if it is not the newest of them."""
    asked = url_state.int_param("step", None)
    if asked is None or not measured:
        return None
    step = _nearest(measured, asked)
    return None if step == measured[-1] else step


def proof(run_id: str, verdict: Verdict, upto: int | None) -> None:
    """Success, and what the verdict rests on besides: the two charts that prove it."""
    page = live_charts.snapshot(run_id, live_charts.Controls(), is_followed=ui.is_following(run_id))
    columns = st.container(key="proof").columns(2, gap="medium")
    for column, name in zip(columns, ("success", EVIDENCE), strict=True):
        with column:
            if upto is None:
                figures.show_sent(live_charts.sent(page, name), key=f"proof_{name}")
                continue
            figure = live_charts.figure_of(page, name, verdict)
            figures.show(
                figure,
                f"The metrics that the verdict after step {upto} rests on",
                key=f"proof_{name}",
                revision=f"{run_id} {upto}",
            )


def examples(run_id: str, verdict: Verdict) -> None:
    """Three trajectories that show the verdict, as text, each with a link."""
    last = verdict.last_step or 0
    with_text = [step for step in queries.trajectory_steps(run_id) if step <= last]
    shown = telling(verdict, queries.listing(run_id, with_text[-1] if with_text else last))
    if not shown.places:
        return
    if shown.words:
        st.caption(f"{capitalised(shown.words)}, step {step_of(shown.places[0])}")
    st.html(tokens.STYLE + replay_html.STYLE + STYLE)
    columns = st.container(key="examples").columns(EXAMPLES, gap="medium")
    for column, example in zip(columns, shown.places, strict=False):
        with column:
            _example(run_id, example)


def step_of(example: Shown) -> int:
    return parse_trajectory_id(example.trajectory_id)[1]


def _example(run_id: str, example: Shown) -> None:
    identity, place = example.trajectory_id, example.turn
    links.link(
        f"Step {step_of(example)}, turn {place}: {identity}",
        "replay",
        run=run_id,
        trajectory=identity,
        turn=place,
    )
    try:
        trajectory = queries.trajectory(run_id, identity)
    except Problem as problem:
        st.caption(plain(problem.text, 300))
        return
    if place >= len(trajectory.turns):
        st.caption("The turn cannot be read: a file of this step is missing or damaged.")
        return
    turn = trajectory.turns[place]
    marked = [turn.response[start:end] for start, end in example.spans]
    observation = replay_html.text_box(cut(turn.observation, 300)[0])
    reply = tokens.text_html(turn, 0, EXAMPLE_CHARS, marked)
    st.html(f'<div class="es-asked">{observation}</div>{reply}')
    if example.note:
        st.caption(plain(example.note, 200))


def _why(verdict: Verdict) -> None:
    """All evidence in numbers, causes, and what would refute the verdict."""
    rows = [row.cells() for row in evidence_rows(verdict)]
    if rows:
        st.dataframe(pd.DataFrame(rows), hide_index=True)
    filled = lists(verdict)
    if filled:
        with st.expander("Possible causes and missing data"):
            for title, texts in filled:
                st.caption(title)
                for text in texts:
                    st.text(f"- {visible(text, 500)}")


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


def _nearest(steps: list[int], wanted: int) -> int:
    """The step of a list that is nearest; the wanted one where the list is empty."""
    return min(steps, key=lambda step: abs(step - wanted), default=wanted)


def _record(run_id: str, step: int, kind: str) -> DiagnosticRecord | None:
    found = [one for one in queries.diagnostics(run_id, step) if one.kind == kind]
    return found[-1] if found else None


def _values_at(run_id: str, step: int, prefix: str) -> dict[str, float]:
    """The training metrics of one step whose keys begin so."""
    sql = (
        "SELECT key, value FROM metrics "
        "WHERE step = $1 AND phase = 'train' AND starts_with(key, $2)"
    )
    found = queries.table(run_id, sql, (step, prefix))
    return {str(key): float(value) for key, value in zip(found["key"], found["value"], strict=True)}


def _regimes(run_id: str, step: int) -> None:
    st.subheader("Regime of the reasoning", anchor=False)
    path = data.regime_path(queries.series(run_id, data.REGIME_KEYS, phase="train"))
    if path is None:
        ui.empty("No measurement tells how the reasoning depends on its prompt.")
        return
    figure = charts.regime_plane(path, selected=step)
    figures.show(figure, "Regime plane of the run", key="regimes", revision=run_id)
    source = (
        "Both axes are estimated from text."
        if path.is_from_text
        else "Both axes are measured with the model (cross-scoring)."
    )
    st.caption(f"{source} Ring: step {step}, with its 95 % interval.")


def _information(run_id: str, step: int) -> None:
    st.subheader("Where the reasoning starts to depend on the prompt", anchor=False)
    record = _record(run_id, step, "information")
    families = data.families_of(record) if record else {}
    shown = [one for one in families.values() if len(one.curve)]
    if not shown:
        reasons = "; ".join(f"{one.family}: {one.problem}" for one in families.values())
        if record is None and origin_of(queries.info(run_id).config) is not Origin.TRAINED:
            ui.empty(MODEL_ELSEWHERE)
            return
        ui.empty(f"Not available at step {step}. {reasons}".strip())
        return
    known = _values_at(run_id, step, "info/")
    prompts = {one.family: known.get(f"info/{one.family}/num_prompts", math.nan) for one in shown}
    ceilings = {name: math.log(n) if n > 1 else math.nan for name, n in prompts.items()}
    lengths = {
        one.family: known.get(f"info/{one.family}/identification_length", math.nan) for one in shown
    }
    curve, matrix = st.tabs(["Information curve", "Prompt by prompt"])
    with curve:
        figure = charts.information_curve(shown, ceilings, lengths)
        figures.show(figure, "Information curve", key="information", revision=run_id)
        st.caption(
            f"Step {step}: information about the prompt in the first k tokens, in nats. "
            "Diamond: enough to identify the prompt."
        )
    with matrix:
        _posterior(run_id, shown, step)


def _posterior(run_id: str, families: list[data.FamilyInformation], step: int) -> None:
    stored = {one.family: one for one in families if one.posterior_NN is not None}
    if not stored:
        ui.empty("This run stores no scores prompt by prompt.")
        return
    family = st.segmented_control(
        "Family",
        list(stored),
        default=next(iter(stored)),
        required=True,
        format_func=lambda name: name.replace("_", " "),
        key="family",
        label_visibility="collapsed",
    )
    one = stored[str(family)]
    assert one.posterior_NN is not None
    figures.show(
        charts.posterior_matrix(one.posterior_NN),
        "Posterior of prompts",
        key="posterior",
        revision=f"{run_id} {family}",
    )
    st.caption(
        f"Step {step}: a bright diagonal means that the reasoning identifies its own prompt. "
        "An even row means that any prompt could have led to that reasoning."
    )
    with st.container(horizontal=True):
        for number, (trajectory, turn) in enumerate(one.prompts[:16], start=1):
            if trajectory:
                links.link(f"{number}", "replay", run=run_id, trajectory=trajectory, turn=turn)


def _template(run_id: str, step: int) -> None:
    st.subheader("Most common reasoning template", anchor=False)
    record = _record(run_id, step, "text")
    template = read_record(record) if record else None
    if template is None or not template.template:
        ui.empty(f"No template was found in the reasonings of step {step}.")
        return
    st.code(visible(template.template, 1000), language=None, wrap_lines=True)
    st.caption(
        f"Step {step}: {100 * template.match_frac:.0f} % of the reasonings share this template. "
        f"{100 * template.coverage:.0f} % of its words are fixed. Slots hold:"
    )
    for number, slot in enumerate(template.fillers[:6], start=1):
        st.text(f"slot {number}: {visible(' | '.join(slot[:6]), 300)}")
    with st.container(horizontal=True):
        for shown in template.exemplars.get("template", ()):
            if shown.trajectory_id:
                links.link(
                    shown.trajectory_id,
                    "replay",
                    run=run_id,
                    trajectory=shown.trajectory_id,
                    turn=shown.turn,
                )


def _tiers(run_id: str) -> None:
    st.subheader("Text-only estimate vs model-based", anchor=False)
    found = queries.series(run_id, [key for key, _ in TIERS], phase="train")
    if found["value"].notna().sum() == 0:
        ui.empty("Neither estimate is stored for this run.")
        return
    figures.show(charts.tiers(found, TIERS), "Two tiers", key="tiers", revision=run_id)
    st.caption("0: the reasoning ignores its prompt. 1: the reasoning identifies its prompt.")


def _groups(run_id: str) -> None:
    st.subheader("Groups and their rewards", anchor=False)
    steps = data.thin(queries.trajectory_steps(run_id), data.MAX_GROUP_STEPS)
    groups = queries.groups_of(run_id, steps)
    if groups.empty:
        ui.empty("No training trajectories are stored.")
        return
    grid = data.group_grid(groups)
    if grid.empty:
        ui.empty(
            "No group has two trajectories with a known reward or success, so no group can "
            "be compared."
        )
        return
    figures.show(charts.group_map(grid), "Groups by outcome", key="groups", revision=run_id)
    st.caption(
        "One cell is one group of siblings. Only mixed groups give a gradient. Darker: more reward "
        "spread."
    )


def _no_gradient(run_id: str, step: int) -> tuple[str, str]:
    """Why a step has no gradient breakdown, and the command that gives one."""
    every = queries.setting_at(run_id, EVERY, step)
    if not isinstance(every, int):
        return "This run has no gradient breakdown.", ""
    is_live = queries.info(run_id).status == "running"
    start = f"echoscope ctl {queries.typed(run_id)} set" if is_live else "echoscope train RECIPE"
    if every == 0:
        words = f"The gradient breakdown is off ({EVERY}=0). To turn it on:"
        return words, f"{start} {EVERY}={GRADIENT_EVERY}"
    words = f"No gradient breakdown at step {step}. It is measured every {every} steps ({EVERY})."
    if every <= GRADIENT_EVERY:
        return words, ""
    return f"{words} To get it more often:", f"{start} {EVERY}={GRADIENT_EVERY}"


def _gradients(run_id: str, step: int) -> None:
    st.subheader("Where the gradient comes from", anchor=False)
    values = _values_at(run_id, step, "gradient/")
    table = data.gradient_table(values)
    if table.empty:
        ui.empty(*_no_gradient(run_id, step))
        return
    left, right = st.columns(2, gap="medium")
    with left:
        figures.show(
            charts.gradient_bars(table),
            "Gradient norms by term and bucket",
            key="gradients",
            revision=run_id,
        )
    with right:
        has_one = table["term"].nunique() <= 2  # a single term is the total
        shown = table[table["term"] != "total"] if has_one else table
        shown = shown.assign(bucket=[charts.bucket_words(name) for name in shown["bucket"]])
        shown = shown.rename(columns={"num_groups": "groups", "reward_std_mean": "reward std"})
        numbers = [name for name in shown.columns if name not in ("term", "bucket")]
        st.dataframe(
            shown,
            hide_index=True,
            placeholder=NONE,
            column_config={name: st.column_config.NumberColumn(format="%.2g") for name in numbers},
        )
        st.caption(f"Step {step}. {_noise_words(values)} {_share_words(values)}".strip())


def _noise_words(values: dict[str, float]) -> str:
    """Signal to noise of the whole policy gradient, in words."""
    snr = values.get("gradient/policy/all/snr", math.nan)
    scale = values.get("gradient/policy/all/noise_scale", math.nan)
    if math.isnan(snr):
        return "The signal-to-noise ratio of the gradient is not available at this step."
    if snr <= 0:
        return (
            "The policy gradient of this single step is not distinguishable from zero: its groups "
            "point in different directions. The mean over many steps can still differ from zero."
        )
    return (
        f"Signal-to-noise ratio of the policy gradient: {snr:.2g}. It reaches 1 at about "
        f"{scale:.3g} groups. A norm alone grows with noise: read the signal share beside it."
    )


def _share_words(values: dict[str, float]) -> str:
    """How much of the gradient one trajectory makes, in words; empty where it was not measured."""
    share = values.get(SHARE, math.nan)
    if math.isnan(share):
        return ""
    return (
        f"One trajectory makes up {value_words(SHARE, share)} of the squared gradient norms, the "
        "largest of the step. Above a third, a single episode steers the update."
    )


def main() -> None:
    ui.run_frame("Diagnosis", draw)


main()
