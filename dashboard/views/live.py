"""Live: how the run stands, its curves, and the means to steer it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pandas as pd
import streamlit as st

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.marks import command_rows, command_words
from echoscope.dashboard.charts.run_figures import Controls
from echoscope.dashboard.charts.theme import CHART_HEIGHT, SEVERITY_TONES
from echoscope.dashboard.data import queries
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import pulses, tiles
from echoscope.dashboard.live.refreshing import follow, guarded
from echoscope.dashboard.page import bar, lineage, links, metric_sections, ui
from echoscope.dashboard.page.evaluation_box import evaluation_box, is_evaluation
from echoscope.dashboard.steer import steering
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import plain
from echoscope.store.query.alarms import severity_course, severity_words
from echoscope.store.reader import CommandState
from echoscope.store.records import Alarm, rule_words
from echoscope.store.status import after_step
from echoscope.text.sentences import capitalised

_STYLE = """<style>
/* Streamlit fades what it draws again; a page that does so by itself must not. */
[data-stale='true'] { opacity: 1 !important; transition: none !important; }
/* Room for what comes a moment later, so that it pushes nothing down. */
.st-key-tiles { min-height: 6rem; }
[class*="st-key-chart_"] { min-height: CHART_HEIGHTpx; }
/* The panel lies over the page: opening it moves nothing. */
[data-testid="stLayoutWrapper"]:has(> .st-key-panel_body) { position: fixed; z-index: 900;
  top: 7.5rem; right: 0; bottom: 0; width: min(30rem, 100vw); overflow-y: auto;
  background: Canvas; box-shadow: -4px 0 16px rgba(0, 0, 0, 0.15);
  border-top-left-radius: 0.5rem; }
.es-bell { width: 2.25rem; height: 2.5rem; border: 0; background: none; color: inherit;
  padding: 0.5rem; cursor: pointer; }
.es-bell svg { width: 1.25rem; height: 1.25rem; fill: none; stroke: currentColor; stroke-width: 1.6;
  stroke-linecap: round; stroke-linejoin: round; }
.es-bell:disabled { opacity: 0.35; cursor: default; }
@media (max-width: 640px) {
  .st-key-tiles { min-height: 9.5rem; }
  [data-testid="stLayoutWrapper"]:has(> .st-key-panel_body) { top: 35vh; width: 100vw;
    box-shadow: 0 -4px 16px rgba(0, 0, 0, 0.15); }
}
</style>""".replace("CHART_HEIGHT", str(CHART_HEIGHT))


def draw(run_id: str) -> Callable[[], object]:
    """The verdict, and what draws the rest of the page."""
    if is_evaluation(run_id):
        return lambda: evaluation_box(run_id)
    # One place for each part, each drawn again by itself: a step does not touch what has no news.
    st.html(_STYLE + bar.STYLE)
    # Streamlit knows elements by their order: without a place of its own, a panel that opens
    # would take over what is drawn after it.
    place_of_panel = st.empty()
    first_screen = st.container(gap="xsmall", key="first_screen")
    with first_screen:
        _verdict(run_id)

    def rest() -> None:
        if st.session_state.get(ui.PANEL):
            with place_of_panel.container(border=True, key="panel_body"):
                panel(run_id)
        with first_screen:
            tiles.show(run_id, is_followed=ui.is_following(run_id))
            draw_charts(run_id)
        lineage.lineage(run_id)
        with st.container(horizontal=True):
            links.link("Own panels", "panels", run=run_id)
            links.link("System", "system", run=run_id)

    return rest


def beside(run_id: str) -> None:
    """At the right end of the first row: what steers the run, and what opens the panel."""
    if is_evaluation(run_id):
        return
    with st.container(
        horizontal=True,
        vertical_alignment="center",
        horizontal_alignment="right",
        key="run_beside",
        width="content",
    ):
        steering.buttons(run_id)
        if ui.is_following(run_id):
            pulses.bell(run_id)
    ui.panel_switch()


def panel(run_id: str) -> None:
    """What waits for an answer, live settings, a new branch, open alarms and commands."""
    st.button("Close", key="panel_close", type="tertiary", on_click=ui.close_panel)
    steering.panel(run_id)
    ui.part("alarms", run_id, ("alarms", "commands"), lambda: open_alarms(run_id))
    ui.part("commands", run_id, ("commands",), lambda: commands(run_id))


def _verdict(run_id: str) -> None:
    def is_judged() -> bool:
        return queries.known_verdict(run_id) is not None

    def draw_bar() -> object:
        return bar.bar(run_id)

    if ui.is_following(run_id) or is_judged():
        ui.part("verdict", run_id, ("verdict",), draw_bar)
    else:
        # With the first verdict the charts show what it rests on: the whole page is drawn again.
        follow("verdict", run_id, ("verdict",), draw_bar, has_news=is_judged)


def draw_charts(run_id: str) -> None:
    """Controls, charts and metrics. A control draws all of these again, a step none of them: the
    charts themselves fetch what is new."""

    def snapshot(controls: Controls) -> live_charts.Snapshot:
        return live_charts.snapshot(run_id, controls, is_followed=ui.is_following(run_id))

    def controlled() -> None:
        box = st.container()  # the controls stand below the charts
        about, look = st.columns([7, 1], vertical_alignment="center")
        with about:
            live_charts.legend()
        with look:
            controls = live_charts.controls(run_id)
        with box:
            ui.part("curated", run_id, ("keys",), lambda: live_charts.curated(snapshot(controls)))
        ui.part("sections", run_id, ("keys",), lambda: sections(controls))

    def sections(controls: Controls) -> None:
        page = snapshot(controls)
        metric_sections.draw(page.keys, lambda keys: live_charts.plain(page, keys))

    @st.fragment(key="charts")
    def both() -> None:
        guarded(controlled)

    both()


def open_alarms(run_id: str) -> None:
    """What is alarming, the worst and newest first, behind one line."""
    worst = queries.open_alarms(run_id)
    with st.expander(_alarms_title(worst), key="open_alarms"):
        for alarm in worst:
            _alarm(run_id, alarm)
        links.link("All alarms", "diagnosis", run=run_id)


def _alarms_title(worst: Sequence[Alarm]) -> str:
    """One line, however many there are: the worst by name, so that the charts stay in place."""
    if not worst:
        return "No alarm is open"
    first = worst[0]
    label = f"{rule_words(first.rule)} ({first.severity.value})"
    more = f" and {len(worst) - 1} more" if len(worst) > 1 else ""
    return plain(f"Open alarms: {label}{more}")


def _alarm(run_id: str, alarm: Alarm) -> None:
    """One alarm with its advice, its evidence, and the command that it suggests."""
    head = st.container(horizontal=True, vertical_alignment="center", gap="small")
    head.badge(alarm.severity.value, color=SEVERITY_TONES[alarm.severity])
    head.text(visible(alarm.message, 1000))
    onset = "" if alarm.onset_step is None else f", began about step {alarm.onset_step}"
    events = [event for event in queries.alarms(run_id) if event.alarm_id == alarm.alarm_id]
    course = severity_course(events)
    raised = f"Raised {after_step(course[0][1])}"
    if len(course) > 1:
        raised = capitalised(severity_words(course))
    advice = queries.alarm_advice(run_id, alarm)
    st.caption(plain(f"{raised}{onset}. {advice.text}", 1000))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if alarm.evidence:
            fact = alarm.evidence[0]
            links.link("Evidence", "replay", run=run_id, step=alarm.step, trajectory=fact)
        else:
            links.link("Evidence", "diagnosis", run=run_id, step=alarm.step)
        wish = advice.wish
        if wish is not None and not settings().is_read_only:
            label = plain(f"Apply: {command_words(CommandState(command=wish, ack=None))}", 80)
            if st.button(label, key=f"suggest_{alarm.alarm_id}"):
                steering.propose(run_id, wish.action, dict(wish.settings), alarm.rule)
                st.rerun()  # the question is asked elsewhere on the page


def commands(run_id: str) -> None:
    """Everything that was asked of the run, and what became of it."""
    states = queries.commands(run_id)
    with st.expander(f"Commands ({len(states)})", key="commands"):
        if states:
            frame = pd.DataFrame(command_rows(reversed(states)))
            st.dataframe(frame.map(lambda text: visible(str(text), 1000)), hide_index=True)
        else:
            st.caption("Nobody has steered this run.")


ui.run_frame("Live", draw, beside=beside, is_urgent=True)
