"""The bar at the top of a run's page: the verdict at a glance, in the same place in every state."""

from __future__ import annotations

import re
from collections.abc import Sequence

import streamlit as st

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict_text import NEAREST, nearest_words, verdict_parts
from echoscope.store.status import RUNNING
from echoscope.text.sentences import capitalised, parts_of_list

from ..charts import theme
from ..data import queries
from ..escaping import escape, escape_with_code
from ..steer import steering
from . import links
from .verdict_box import apply_button, newest_line

MAX_FACTS = 3
"""Pieces of evidence in the bar; the page Diagnosis has all of them."""
STYLE = """<style>
[class*="st-key-verdict_bar_"] { min-height: 9.25rem; border-radius: 0.5rem; border-left: 6px solid;
  padding: 0.5rem 1rem; justify-content: center; }
TONES
.es-verdict { line-height: 1.35rem; font-size: 0.9rem; }
.es-headline { font-weight: 600; font-size: 1rem; line-height: 1.35rem; overflow: hidden;
  display: -webkit-box; -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.es-verdict .es-facts { max-height: 2.7rem; overflow: hidden; }
.es-verdict .es-facts span { display: inline-block; position: relative; left: -1rem;
  padding-left: 1rem; }
.es-verdict .es-facts span::before { content: "\\00b7"; position: absolute; left: 0.35rem;
  opacity: 0.5; }  /* between two facts of a line: the first one's is cut off */
.es-do { max-height: 2.7rem; font-weight: 600; overflow: hidden; display: -webkit-box;
  -webkit-box-orient: vertical; -webkit-line-clamp: 2; }
.es-more { display: none; }
.st-key-verdict_rest > :has(> .st-key-verdict_ways) { flex: none; }
.st-key-verdict_links { row-gap: 0; }
.st-key-verdict_ways [data-testid="stPageLink-NavLink"] { padding: 0; min-height: 0; }
.es-tiles { display: grid; gap: 0.5rem; grid-template-columns: repeat(6, minmax(0, 1fr)); }
.es-tile { font: inherit; color: inherit; text-align: left; cursor: pointer; height: 6rem;
  padding: 0.5rem 0.75rem; border-radius: 0.5rem; overflow: hidden; background: transparent;
  border: 1px solid var(--st-border-color); display: flex; flex-direction: column; }
.es-tile span { white-space: nowrap; overflow: hidden; text-overflow: ellipsis; flex: none; }
.es-name { font-size: 0.78rem; line-height: 1rem; opacity: 0.75; }
.es-value { font-size: 1.15rem; font-weight: 600; line-height: 1.5rem; }
.es-change { font-size: 0.75rem; line-height: 1rem; opacity: 0.75; }
.es-tile svg { width: 100%; height: 1.25rem; margin-top: auto; flex: none;
  color: var(--st-primary-color); }
@media (min-width: 641px) { .st-key-verdict_rest { flex-wrap: nowrap; } }
@media (max-width: 640px) {
  .es-name, .es-change { font-size: 0.7rem; }
  [class*="st-key-verdict_bar_"] { min-height: 9.5rem; }
  .st-key-verdict_rest { row-gap: 0.25rem; }
  .st-key-verdict_rest > :has(> .st-key-verdict_ways) { flex: 1 1 100%; }
  .es-verdict .es-facts { display: none; }
  .es-verdict .es-facts span { display: block; left: 0; padding: 0; }
  .es-verdict .es-facts span::before { content: none; }
  .es-do { -webkit-line-clamp: 1; }
  .es-more { display: block; width: fit-content; cursor: pointer; text-decoration: underline;
    text-underline-offset: 3px; }
  .es-more[open] summary { display: none; }
  [class*="st-key-verdict_bar_"]:has(.es-more[open]) .es-headline,
  .es-verdict:has(.es-more[open]) .es-do { display: block; max-height: none; }
  .es-verdict:has(.es-more[open]) .es-facts { display: block; max-height: none; }
  .es-tiles { grid-template-columns: repeat(3, minmax(0, 1fr)); }
  .es-tile { height: 4.5rem; padding: 0.25rem 0.5rem; }
  .es-tile svg { display: none; }
}
</style>""".replace(
    "TONES",
    "\n".join(
        f".st-key-verdict_bar_{tone} {{ border-color: {color}; "
        f"background: color-mix(in srgb, {color} 11%, transparent); }}"
        for tone, color in theme.TONES.items()
    ),
)
_WAYS_PX = 264
"""Width of the column of the bar with what can be pressed."""


def bar(run_id: str) -> Verdict:
    """What is the matter, the numbers behind it, and the way on, in a box of fixed height."""
    verdict = queries.verdict(run_id)
    is_first = queries.is_judging(run_id) and verdict.last_step is None
    tone = "gray" if is_first else theme.STATE_TONES[theme.shown_state(verdict)]
    headline, facts = ("The run is being judged.", []) if is_first else _words(verdict)
    to_do = "" if is_first else _to_do(run_id, verdict)
    with st.container(key=f"verdict_bar_{tone}", gap=None):
        first = escape(headline, 600)
        st.html(f'<div class="es-headline" title="{first}">{first}</div>')
        with st.container(horizontal=True, key="verdict_rest", gap="small"):
            st.html(_rest(facts, to_do))
            with st.container(key="verdict_ways", width=_WAYS_PX, gap="xxsmall"):
                apply_button(run_id, verdict, is_live_page=True)
                with st.container(horizontal=True, key="verdict_links", gap="small"):
                    _ways_on(run_id, verdict)
                newest_line(run_id, verdict)
    return verdict


def _to_do(run_id: str, verdict: Verdict) -> str:
    """The first thing to do, in a sentence: it stands there whether or not a button can do it."""
    if verdict.actions:
        first = verdict.actions[0]
        if first.command.endswith(" resume") and steering.can_steer(run_id):
            return f"To do: {first.text} Press Resume."
        typed = f" `{first.command}`" if first.command and first.verb == "none" else ""
        return f"To do: {first.text}{typed}"  # the others have a button
    if any(isinstance(claim, Fate) for claim in verdict.claims):
        return ""  # the first sentence says how to go on
    is_running = queries.info(run_id).status == RUNNING
    watch = f" Watch: {nearest_words(verdict.nearest)}." if verdict.nearest else ""
    is_well = verdict.state in (RunState.HEALTHY, RunState.CONVERGED)
    if is_running and (is_well or verdict.state is RunState.RECOVERING):
        return f"To do: nothing now. Let the run go on.{watch}"
    if is_well:
        return f"To do: nothing.{watch}"
    if verdict.state is RunState.INSUFFICIENT:
        return _to_have(verdict, is_running=is_running)
    return ""


def _to_have(verdict: Verdict, *, is_running: bool) -> str:
    """What a run without a verdict lacks: a measure of success, or steps."""
    if verdict.last_step is not None and "success" not in verdict.had:
        return "To do: log a success rate, in training or of an evaluation."
    return "To do: wait for more steps." if is_running else "To do: train for more steps."


def _rest(facts: Sequence[str], to_do: str) -> str:
    """What stands below the headline; on a telephone it unfolds, and the headline with it."""
    spans = "".join(f"<span>{escape(fact, 200)}</span>" for fact in facts)
    return (
        f'<div class="es-verdict"><div class="es-facts">{spans}</div>'
        f'<div class="es-do" title="{escape(to_do, 400)}">{escape_with_code(to_do, 400)}</div>'
        '<details class="es-more"><summary>All of it</summary></details></div>'
    )


def _words(verdict: Verdict) -> tuple[str, list[str]]:
    """Headline and facts; without evidence the facts are what else the first paragraph says."""
    parts = verdict_parts(verdict.text)
    first, evidence = parts[0][1], dict(parts).get("Evidence", "")
    if evidence:
        facts = parts_of_list(evidence.rstrip("."))[:MAX_FACTS]
        return first, [capitalised(fact) for fact in facts]
    sentences = re.split(r"(?<=[.])\s+(?=[A-Z])", first)
    rest = [text for text in sentences[2:] if not text.startswith(NEAREST)]  # stands in "To do"
    return " ".join(sentences[:2]), [sentence.rstrip(".") for sentence in rest]


def _ways_on(run_id: str, verdict: Verdict) -> None:
    if verdict.exemplars:
        exemplar, many = verdict.exemplars[0], len(verdict.exemplars)
        links.link(
            f"See {many} examples" if many > 1 else "See an example",
            "replay",
            run=run_id,
            trajectory=exemplar.trajectory_id,
            turn=exemplar.turn,
        )
    links.link("Why", "diagnosis", run=run_id)
