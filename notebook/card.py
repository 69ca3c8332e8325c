"""The card of a run: status, verdict, key figures, alarms, and how to go on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from echoscope.dashboard.charts.tiles import NOTHING, Tile, tile_keys, tiles
from echoscope.dashboard.data import tables
from echoscope.dashboard.data.alarm_history import histories
from echoscope.dashboard.data.progress import pace, progress_words, training_episodes
from echoscope.dashboard.escaping import attribute, escape, visible
from echoscope.dashboard.words import status_words
from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.reader import RunReader, info_status
from echoscope.store.steer.settings import settings_over
from echoscope.store.steer.steering import standing

from . import html
from .judgement import Judgement

MAX_ALARMS = 3
"""Open alarms that a card names."""
MAX_NOTES = 20
_UNJUDGED = "No verdict yet: .diagnose() reads the episodes first, which takes a moment."
_HAS_EPISODES = "SELECT count(*) > 0 FROM (FROM trajectories LIMIT 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """What a card says. Texts are hostile until they are drawn."""

    name: str
    facts: Sequence[str]
    """Status, model and the like."""
    verdict: Judgement | None
    tiles: Sequence[Tile]
    """None before the first step."""
    lines: Sequence[tuple[str, str]]
    """(alarm, note or what one types; the words for it)."""

    @property
    def unjudged(self) -> str:
        """What stands in place of a verdict."""
        return _UNJUDGED if self.tiles else "No step yet."


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
    step_s = pace(steps)
    status = info_status(info, commands, step_s=step_s, now=now)
    planned = standing(info, commands, settings_over(info, commands, run.settings()).now).steps
    keys = run.metric_keys()
    numbers = tiles(
        tables.outlines(run, tile_keys(keys)),
        keys,
        verdict=verdict,
        progress=progress_words(status, step_s, last_step=info.last_step, steps=planned),
        episodes=training_episodes(steps),
    )
    imported = info.config.get("imported")
    trainer = imported.get("trainer") if isinstance(imported, dict) else None
    facts = [
        status_words(status, info.last_step, planned, now)[0],
        f"trainer {trainer}" if trainer else "",
        f"model {info.base_model}" if info.base_model else "",
        f"from run {info.parent_run_id}" if info.parent_run_id else "",
    ]
    alarms = [alarm for alarm in histories(run.alarms(), commands) if alarm.is_open]
    lines = [
        ("alarm", f"{alarm.severity}: {alarm.latest.message}") for alarm in alarms[:MAX_ALARMS]
    ]
    if len(alarms) > MAX_ALARMS:
        lines.append(("alarm", f"{len(alarms) - MAX_ALARMS} more: .alarms()"))
    lines += [("note", text) for text in [*run.warnings, *notes][:MAX_NOTES]]
    has_steps = info.last_step >= 0
    return Card(
        name=name,
        facts=[fact for fact in facts if fact],
        verdict=None if verdict is None else Judgement(run=typed, verdict=verdict),
        tiles=[tile for tile in numbers if has_steps and tile.change != NOTHING],
        lines=[*lines, *_next_steps(run, typed, is_kept=is_kept, has_steps=has_steps)],
    )


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
    facts = " &middot; ".join(escape(fact, 200) for fact in card.facts)
    lines = "".join(
        f"<dt>{escape(label, 300)}</dt><dd>{escape(words, 600)}</dd>" for label, words in card.lines
    )
    return html.framed(
        f'<div><span class="es-nb-title">{escape(card.name, 200)}</span> '
        f'<span class="es-nb-quiet">{facts}</span></div>',
        f"<p>{card.unjudged}</p>" if card.verdict is None else card.verdict.box_html(),
        f'<div class="es-nb-tiles">{"".join(map(_tile_html, card.tiles))}</div>',
        f"<dl>{lines}</dl>",
    )


def _tile_html(tile: Tile) -> str:
    proof = " es-nb-proof" * tile.is_evidence
    return (
        f'<div class="es-nb-tile{proof}" title="{attribute(tile.help)}">'
        f"<span>{escape(tile.name)}</span><b>{escape(tile.value)}</b>"
        f"{html.curve_svg(tile.spark)}<span>{escape(tile.change)}</span></div>"
    )


def text_of(card: Card) -> str:
    """The card for a terminal."""
    lines = [f"{card.name}: {', '.join(card.facts)}"]
    if card.verdict is None:
        lines.append(card.unjudged)
    else:
        state, sentence = card.verdict.state, card.verdict.sentence
        is_named = sentence.lower().startswith(state)
        lines.append(sentence if is_named else f"{state}: {sentence}")
        lines.append(f"reasoning: {card.verdict.regime}")
    width = max((len(tile.name) for tile in card.tiles), default=0)
    for tile in card.tiles:
        curve = html.curve_text(tile.spark)
        lines.append(f"  {tile.name:<{width}}  {tile.value}  {curve}  {tile.change}".rstrip())
    lines += [f"{label}: {words}" for label, words in card.lines]
    return visible("\n".join(lines), None)
