"""The bar at the top of a run's page: the verdict at a glance, in the same place in every state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import streamlit as st

from echoscope.diagnostics.judge.record import Evidence, Verdict

from ..data import queries
from ..escaping import escape
from ..labels import label, value_words
from ..live import lines as live_lines
from ..live import pulses
from . import ui

MAX_FACTS = 3
"""Pieces of evidence in the bar; the page Diagnosis has all of them."""
TONES: Mapping[str, str] = {
    "healthy": "green",
    "converged": "green",
    "watch": "orange",
    "collapsing": "red",
    "collapsed": "red",
    "not learning": "red",
}
"""State of a verdict -> colour of the bar; grey for any other."""
STYLE = """<style>
[class*="st-key-verdict_bar"] { min-height: 6.6rem; border-radius: 0.5rem; border-left: 6px solid;
  padding: 0.45rem 0.9rem 0.35rem; gap: 0.1rem; }
.st-key-verdict_bar_green { border-color: var(--st-green-color);
  background: var(--st-green-background-color); }
.st-key-verdict_bar_orange { border-color: var(--st-orange-color);
  background: var(--st-orange-background-color); }
.st-key-verdict_bar_red { border-color: var(--st-red-color);
  background: var(--st-red-background-color); }
.st-key-verdict_bar_gray { border-color: var(--st-gray-color);
  background: var(--st-gray-background-color); }
.es-headline { font-weight: 600; height: 1.5rem; line-height: 1.5rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.es-facts { height: 1.4rem; line-height: 1.4rem; font-size: 0.9rem; overflow: hidden;
  text-overflow: ellipsis; white-space: nowrap; }
.es-facts span + span::before { content: "|"; margin: 0 0.6rem; opacity: 0.4; }
.es-tiles { display: grid; gap: 0.5rem; grid-template-columns: repeat(6, minmax(0, 1fr)); }
.es-tile { font: inherit; color: inherit; text-align: left; cursor: pointer; height: 6.1rem;
  padding: 0.35rem 0.6rem; border-radius: 0.5rem; overflow: hidden; background: transparent;
  border: 1px solid var(--st-border-color); display: flex; flex-direction: column; }
.es-tile.es-evidence { border-left: 5px solid var(--st-orange-color); }
.es-tile span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; flex: none; }
.es-name { font-size: 0.78rem; opacity: 0.75; }
.es-value { font-size: 1.15rem; font-weight: 600; line-height: 1.4rem; }
.es-change { font-size: 0.75rem; opacity: 0.75; }
.es-tile svg { width: 100%; height: 1.4rem; flex: none; color: var(--st-primary-color); }
@media (max-width: 640px) {
  .es-headline, .es-facts { white-space: normal; height: 3rem; }
  .es-tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
</style>"""


def bar(run_id: str) -> Verdict:
    """What is the matter, the numbers behind it, and the way on: three lines of fixed height."""
    found = queries.verdict(run_id)
    is_first = queries.is_judging(run_id) and found.last_step is None
    tone = "gray" if is_first else TONES.get(found.state.value, "gray")
    with st.container(key=f"verdict_bar_{tone}"):
        st.html(_html("The run is being judged.", ()) if is_first else _html(*_words(found)))
        row = st.container(horizontal=True, vertical_alignment="center", key="verdict_bar_row")
        with row:
            _ways_on(run_id, found)
            if found.last_step is not None:
                is_moving = ui.is_following(run_id) or queries.is_judging(run_id)
                every_s = pulses.EVERY_S if is_moving else None
                newest = pulses.verdict_line(run_id)
                live_lines.show(run_id, "verdict", newest, kind="caption", every_s=every_s)
    return found


def _html(headline: str, facts: Sequence[str]) -> str:
    spans = "".join(f"<span>{escape(fact, 200)}</span>" for fact in facts)
    return (
        f'<div class="es-headline" title="{escape(headline, 600)}">{escape(headline, 600)}</div>'
        f'<div class="es-facts">{spans}</div>'
    )


def _words(found: Verdict) -> tuple[str, list[str]]:
    """Headline and facts of a verdict.

    A verdict's first paragraph says what is the matter; numbers come from its evidence.
    """
    headline = found.text.split("\n")[0]
    facts = [fact_words(one) for one in found.evidence[:MAX_FACTS]]
    return headline, facts


def fact_words(one: Evidence) -> str:
    """A piece of evidence in a few words: `Policy entropy 0.4 -> 1.9 (step 31 -> 54)`."""
    key = re.sub(r"/\*/", "/", one.metric)
    now, steps = value_words(key, one.after), one.steps
    if one.before != one.before:
        return f"{label(key).name} {now} (step {steps[1]})"
    before = value_words(key, one.before)
    return f"{label(key).name} {before} -> {now} (step {steps[0]} -> {steps[1]})"


def _ways_on(run_id: str, found: Verdict) -> None:
    if found.exemplars:
        shown = found.exemplars[0]
        ui.link(
            f"{len(found.exemplars)} examples" if len(found.exemplars) > 1 else "Example",
            "replay",
            run=run_id,
            trajectory=shown.trajectory_id,
            turn=shown.turn,
        )
    ui.link("Why", "diagnosis", run=run_id)
