"""The card of a run: status, verdict, key figures, alarms, and how to go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from echoscope.dashboard.charts.theme import STATES, shown_state
from echoscope.dashboard.charts.tiles import NOTHING, Tile, tile_keys, tiles
from echoscope.dashboard.data import tables
from echoscope.dashboard.data.alarm_history import AlarmHistory, histories
from echoscope.dashboard.data.progress import pace, progress_words, training_episodes
from echoscope.dashboard.escaping import attribute, escape, visible
from echoscope.dashboard.words import status_words
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.sentences import verdict_parts
from echoscope.store.reader import RunReader, info_status
from echoscope.store.steer.settings import settings_over
from echoscope.store.steer.steering import standing

from . import html

MAX_ALARMS = 3
"""Open alarms that a card names."""
_UNJUDGED = "No verdict yet: `.diagnose()` reads the episodes first, which takes a moment."


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a card says. Texts are hostile until they are drawn."""

    name: str
    status: str
    facts: Sequence[str]
    """Model, tags and the like."""
    verdict: Verdict | None
    tiles: Sequence[Tile]
    alarms: Sequence[AlarmHistory]
    """Open ones, the most severe first."""
    warnings: Sequence[str]
    next_steps: Sequence[tuple[str, str]]
    """(what one types, what it gives)."""


def card_of(
    run: RunReader,
    verdict: Verdict | None,
    *,
    name: str,
    typed: str,
    is_kept: bool,
    notes: Sequence[str],
) -> Card:
    """The card of a run as it stands now.

    Args:
        verdict: None where working it out would take long.
        typed: How a command names the run.
        is_kept: The run's folder stays; False for one that an import made for now.
        notes: What is to be known of an import.
    """
    info, commands, now = run.info(), run.commands(), time.time()
    steps = run.steps().to_pandas()
    speed = pace(steps)
    stands = info_status(info, commands, step_s=speed.step_s, now=now)
    planned = standing(info, commands, settings_over(info, commands, run.settings()).now).steps
    known = run.metric_keys()
    shown = tiles(
        tables.outlines(run, tile_keys(known)),
        known,
        verdict=verdict,
        progress=progress_words(stands, speed, last_step=info.last_step, steps=planned),
        episodes=training_episodes(steps),
    )
    history = histories(run.alarms(), commands)
    imported = info.config.get("imported")
    trainer = imported.get("trainer") if isinstance(imported, dict) else None
    facts = [
        f"trainer {trainer}" if trainer else "",
        f"model {info.base_model}" if info.base_model else "",
        f"from run {info.parent_run_id}" if info.parent_run_id else "",
    ]
    return Card(
        name=name,
        status=status_words(stands, info.last_step, planned, now)[0],
        facts=[fact for fact in facts if fact],
        verdict=verdict,
        tiles=[] if info.last_step < 0 else [tile for tile in shown if tile.change != NOTHING],
        alarms=[one for one in history if one.is_open],
        warnings=[*run.warnings, *notes],
        next_steps=_next_steps(run, typed, is_kept=is_kept, has_steps=info.last_step >= 0),
    )


_HAS_EPISODES = "SELECT count(*) > 0 FROM (FROM trajectories LIMIT 1)"


def _next_steps(
    run: RunReader, typed: str, *, is_kept: bool, has_steps: bool
) -> list[tuple[str, str]]:
    if not has_steps:
        return [(".refresh()", "look again once the first step is done")]
    episodes = ('.trajectories(where="success")', "episodes; .episode(id) shows one")
    shell = (f"echoscope report {typed}", "one HTML file to pass on (in a shell)")
    if not is_kept:
        shell = (f"echoscope import {typed}", "keeps it as a run (in a shell)")
    return [
        (".diagnose()", "the verdict with its evidence"),
        (".plots()", "the figures; .plot(name) draws one"),
        (".metrics()", "all curves as a DataFrame"),
        *([episodes] if run.sql(_HAS_EPISODES).column(0)[0].as_py() else []),
        shell,
    ]


def html_of(card: Card) -> str:
    """The card as escaped HTML."""
    facts = " &middot; ".join(escape(fact, 200) for fact in (card.status, *card.facts))
    return html.framed(
        f'<div><span class="es-nb-title">{escape(card.name, 200)}</span> '
        f'<span class="es-nb-quiet">{facts}</span></div>',
        _verdict_html(card.verdict) if card.tiles or card.verdict else "<p>No step yet.</p>",
        f'<div class="es-nb-tiles">{"".join(map(_tile_html, card.tiles))}</div>'
        if card.tiles
        else "",
        _alarms_html(card.alarms),
        _list_html("Note", "Notes", card.warnings),
        '<p class="es-nb-quiet">'
        + " &middot; ".join(
            f"<code>{escape(typed, 300)}</code> {escape(words, 200)}"
            for typed, words in card.next_steps
        )
        + "</p>",
    )


def _verdict_html(verdict: Verdict | None) -> str:
    if verdict is None:
        return f"<p>{escape(_UNJUDGED.replace('`', ''))}</p>"
    state = verdict.state.value
    color = STATES[shown_state(verdict)]
    parts = dict(verdict_parts(verdict.text))
    text, _, command = parts.get("What to do", "").partition("\n  ")
    advice = f"<p><b>What to do:</b> {escape(text, 1000)}</p>" if text else ""
    typed = f"<pre>{escape(command, 1000)}</pre>" if command else ""
    return (
        f'<div class="es-nb-verdict" style="border-color:{color}">'
        f"<p>{html.badge(escape(state), color)} "
        f'{escape(parts[""], 1000)} <span class="es-nb-quiet">Reasoning: '
        f"{escape(verdict.regime.words)}; confidence {escape(verdict.confidence)}.</span></p>"
        f"{advice}{typed}</div>"
    )


def _tile_html(tile: Tile) -> str:
    proof = " es-nb-proof" * tile.is_evidence
    return (
        f'<div class="es-nb-tile{proof}" title="{attribute(tile.help)}">'
        f"<span>{escape(tile.name)}</span><b>{escape(tile.value)}</b>"
        f"{html.curve_svg(tile.spark)}<span>{escape(tile.change)}</span></div>"
    )


def _alarms_html(alarms: Sequence[AlarmHistory]) -> str:
    if not alarms:
        return ""
    items = "".join(f"<li>{escape(words, 600)}</li>" for words in _alarm_words(alarms))
    return f"<p><b>Open alarms</b></p><ul>{items}</ul>"


def _alarm_words(alarms: Sequence[AlarmHistory]) -> list[str]:
    shown = [f"{one.severity}: {one.latest.message}" for one in alarms]
    more = len(shown) - MAX_ALARMS
    return shown[:MAX_ALARMS] + ([f"{more} more: .alarms()"] if more > 0 else [])


def _list_html(one: str, several: str, texts: Sequence[str]) -> str:
    if not texts:
        return ""
    title = one if len(texts) == 1 else f"{several} ({len(texts)})"
    items = "".join(f"<li>{escape(text, 600)}</li>" for text in texts[:20])
    return f"<details><summary>{title}</summary><ul>{items}</ul></details>"


def text_of(card: Card) -> str:
    """The card for a terminal."""
    head = f"{card.name}: {', '.join([card.status, *card.facts])}"
    lines = [head]
    if card.verdict is not None:
        sentence = verdict_parts(card.verdict.text)[0][1]
        state = card.verdict.state.value
        is_said = sentence.lower().startswith(state)
        lines.append(sentence if is_said else f"{state}: {sentence}")
        lines.append(f"reasoning: {card.verdict.regime.words}")
    elif card.tiles:
        lines.append(_UNJUDGED.replace("`", ""))
    else:
        lines.append("No step yet.")
    width = max((len(tile.name) for tile in card.tiles), default=0)
    for tile in card.tiles:
        curve = html.curve_text(tile.spark)
        lines.append(f"  {tile.name:<{width}}  {tile.value}  {curve}  {tile.change}".rstrip())
    lines += [f"alarm: {words}" for words in _alarm_words(card.alarms)]
    lines += [f"note: {text}" for text in card.warnings[:5]]
    lines += [f"{typed}: {words}" for typed, words in card.next_steps]
    return visible("\n".join(lines), None)
