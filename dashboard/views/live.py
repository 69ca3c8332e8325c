"""Live: how the run stands, its curves, and the means to steer it."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import streamlit as st
from echoscope.dashboard import (
    branch_form,
    lineage,
    live_charts,
    metric_sections,
    pulses,
    queries,
    refreshing,
    steering,
    ui,
)
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live_charts import Snapshot
from echoscope.dashboard.progress import Pace, pace, remaining_s, silence
from echoscope.dashboard.settings import settings
from echoscope.store.records import Alarm, AlarmSeverity
from echoscope.store.steering import Standing, standing

IDLE_S = 5.0
"""Between two looks at a run that is not live: somebody may resume it."""
SEVERITIES = (AlarmSeverity.CRITICAL, AlarmSeverity.WARNING, AlarmSeverity.INFO)
SHOWN_ALARMS = 3
"""More than these are folded, so that the charts stay in sight."""
STEADY = (
    "<style>[data-stale='true'] { opacity: 1 !important; transition: none !important; }</style>"
)
"""Streamlit fades what it draws again; a page that does so every second must not."""


def draw(run_id: str) -> None:
    seen = pulses.pulse(run_id)  # first: whatever comes while the rest is read is news
    position = queries.position(run_id)
    page = Snapshot(
        run_id=run_id,
        position=position,
        info=queries.info(run_id),
        steps=queries.step_table(run_id),
        known=queries.metric_keys(run_id),
    )
    # One place for each part: what comes and goes in one must not rebuild the charts below it.
    verdict, progress, desk, alarms, body = (st.container() for _ in range(5))
    with verdict:
        ui.verdict_box(run_id)
    with progress:
        watch(page, seen)
        lineage.lineage(run_id)
    with desk:
        steering.panel(run_id)
        branch_form.panel(run_id)
    with alarms:
        open_alarms(run_id)
    with body:
        st.html(STEADY)
        if len(page.steps) or page.known:
            draw_charts(page)
        else:
            ui.empty("No step is finished yet: the curves begin with the first one.")
            commands(run_id)


def draw_charts(page: Snapshot) -> None:
    """Controls, charts and metrics: touching one of them draws these again and nothing else."""

    @st.fragment(key="charts")
    def part() -> None:
        ui.guarded(lambda: _draw_charts(replace(page, controls=live_charts.controls(page.run_id))))

    part()


def _draw_charts(page: Snapshot) -> None:
    live_charts.curated(page)
    commands(page.run_id)
    metric_sections.draw(page.known, lambda keys: live_charts.plain(page, keys))


def watch(page: Snapshot, seen: pulses.Pulse) -> None:
    """Where the run is; draws the page again when there is something new, and only then."""

    def look() -> None:
        now = standing(page.info, queries.commands(page.run_id))
        done = max(0, page.info.last_step)
        words = progress_words(page, now, pace(page.steps))
        st.progress(min(1.0, done / now.steps) if now.steps > 0 else 0.0, text=words)

    if page.info.status == "running" and not ui.is_following(page.run_id):
        look()
        return
    every_s = refreshing.EVERY_S if page.info.status == "running" else IDLE_S
    names = ("position", "words")
    ui.follow("watch", page.run_id, names, look, has_news=lambda: True, seen=seen, every_s=every_s)


def progress_words(page: Snapshot, now: Standing, speed: Pace) -> str:
    """`step 41 of 60, live, about 20 s to go, 1.1 s a step, 4,286 tokens/s`."""
    done = max(0, page.info.last_step)
    words = [f"step {done} of {now.steps}"]
    if page.info.status != "running":
        words.append(page.info.status)
    else:
        silent = silence(speed, now=time.time(), heard_at=pulses.updated_at(page.run_id))
        left = remaining_s(speed, step=done, steps=now.steps)
        if now.is_paused:
            words.append("paused")
        elif silent is not None:
            since = time.strftime("%H:%M:%S", time.localtime(time.time() - silent))
            words.append(f"stale since {since} ({ui.duration(silent)})")
        else:
            words.append("live")
            if math.isfinite(left):
                words.append(f"about {ui.duration(left)} to go")
    if math.isfinite(speed.step_s):
        words.append(f"{speed.step_s:.3g} s a step")
    if math.isfinite(speed.tokens_per_s):
        words.append(f"{speed.tokens_per_s:,.0f} tokens/s")
    return ", ".join(words)


def open_alarms(run_id: str) -> None:
    """What is alarming, the worst and newest first; what merely informs stays folded."""
    found = queries.open_alarms(run_id)
    worst = sorted(found, key=lambda alarm: (SEVERITIES.index(alarm.severity), -alarm.step))
    serious = [alarm for alarm in worst if alarm.severity is not AlarmSeverity.INFO]
    shown, folded = serious[:SHOWN_ALARMS], serious[SHOWN_ALARMS:]
    folded += [alarm for alarm in worst if alarm.severity is AlarmSeverity.INFO]
    if shown:
        with st.container(border=True, gap="small", key="open_alarms"):
            for alarm in shown:
                _alarm(run_id, alarm)
            ui.link("All alarms", "alarms", run=run_id)
    if folded:
        words = "more alarms" if shown else "alarms for information"
        with st.expander(f"{len(folded)} {words}", key="more_alarms"):
            for alarm in folded:
                _alarm(run_id, alarm)


def _alarm(run_id: str, alarm: Alarm) -> None:
    """One alarm with its advice, its evidence, and the command that it suggests."""
    head = st.container(horizontal=True, vertical_alignment="center", gap="small")
    head.badge(alarm.severity.value, color=ui.SEVERITY_COLOURS[alarm.severity.value])
    head.text(visible(alarm.message, 1000))
    onset = "" if alarm.onset_step is None else f", began about step {alarm.onset_step}"
    st.caption(ui.plain(f"Since step {alarm.step}{onset}. {alarm.advice}", 1000))
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        if alarm.evidence:
            at = alarm.evidence[0]
            ui.link("Evidence", "replay", run=run_id, step=alarm.step, trajectory=at)
        else:
            ui.link("Evidence", "diagnosis", run=run_id, step=alarm.step)
        may_steer = queries.info(run_id).status == "running" and not settings().is_read_only
        if alarm.suggested is not None and may_steer:
            st.button(
                "Do what it suggests",
                key=f"suggest_{alarm.alarm_id}",
                on_click=steering.propose,
                args=(run_id, alarm.suggested.action, dict(alarm.suggested.settings), alarm.rule),
            )


def commands(run_id: str) -> None:
    """Everything that was asked of the run, and what became of it."""
    states = queries.commands(run_id)
    with st.expander(f"Commands ({len(states)})", key="commands"):
        if states:
            st.dataframe(steering.command_table(states), hide_index=True)
        else:
            st.caption("Nobody has steered this run.")


def main() -> None:
    ui.run_frame("Live", draw)


main()
