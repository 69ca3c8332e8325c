"""What a notebook draws: a run as a card, a verdict with its evidence, an episode as a dialogue.

Texts of runs are hostile: they are escaped (`dashboard.escaping`) before they become a part of
HTML. Colours come from the notebook's own text colour, so that a card is readable on any
background; the few that differ by theme follow the marks that Jupyter, VS Code, Colab and MkDocs
put on the page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from echoscope.dashboard.charts.tiles import NOTHING, Tile, tile_keys, tiles
from echoscope.dashboard.data import tables
from echoscope.dashboard.data.progress import pace, progress_words
from echoscope.dashboard.escaping import attribute, cut, escape, visible
from echoscope.dashboard.replay import html as replay_html
from echoscope.dashboard.replay import tokens
from echoscope.dashboard.report import verdict_html
from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.dashboard.words import status_words
from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict_text import verdict_parts
from echoscope.store.query.alarms import histories
from echoscope.store.reader import RunReader, info_status
from echoscope.store.records import Trajectory, TrajectoryOutcome, Turn
from echoscope.store.steer.settings import live_settings
from echoscope.store.steer.steering import standing

_MARKS = {
    "light": (
        *("[data-jp-theme-light=true]", ".vscode-light", "html[theme=light]"),
        *("[data-theme=light]", "[data-md-color-scheme=default]"),
    ),
    "dark": (
        *("[data-jp-theme-light=false]", ".vscode-dark", "html[theme=dark]"),
        *("[data-theme=dark]", "[data-md-color-scheme=slate]"),
    ),
}
_SCHEMES = "".join(
    f"{','.join(f'{mark} .es-nb' for mark in marks)}{{color-scheme:{scheme}}}"
    for scheme, marks in _MARKS.items()
)
STYLE = (
    f"{verdict_html.STYLE}<style>{_SCHEMES}"
    ".es-nb{font:14px/1.5 system-ui,sans-serif;border:1px solid rgba(128,128,128,.35);"
    "border-radius:.5rem;padding:.7rem 1rem;max-width:62rem;text-align:left;margin:.2rem 0}"
    ".es-nb p{margin:.35rem 0}"
    ".es-nb-title{font-size:1.15em;font-weight:650;overflow-wrap:anywhere}"
    ".es-nb-tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(8.6rem,1fr));"
    "gap:.5rem;margin:.6rem 0}"
    ".es-nb-tile{border:1px solid rgba(128,128,128,.3);border-radius:.4rem;padding:.35rem .6rem;"
    "min-width:0}.es-nb-tile b{display:block;font-size:1.05em;overflow-wrap:anywhere}"
    ".es-nb-tile span{display:block;font-size:.82em;opacity:.75;line-height:1.35}"
    ".es-nb-tile svg{display:block;width:100%;height:26px}"
    ".es-nb .es-ctl{border:1px solid currentColor;border-radius:3px;font-size:.8em;padding:0 3px;"
    "opacity:1}"
    ".es-nb .es-facts span{white-space:normal;overflow-wrap:anywhere}"
    ".es-nb .es-outside,.es-nb .es-tag,.es-nb .es-nl{"
    "color:color-mix(in srgb,currentColor 72%,transparent)}"
    ".es-nb .es-talk{height:auto;max-height:34rem;min-height:0}"
    "</style>"
)
_WIDTH, _HEIGHT = 100, 26


def _framed(*parts: str, style: str = STYLE) -> str:
    """Parts of HTML, escaped already, as one card."""
    return f'{style}<div class="es-nb">{"".join(parts)}</div>'


def _curve_svg(values: Sequence[float]) -> str:
    """A small curve; nothing of fewer than two values, which have no course."""
    if len(values) < 2:
        return ""
    low, high = min(values), max(values)
    points = " ".join(
        f"{1 + (_WIDTH - 2) * index / (len(values) - 1):.1f},"
        f"{_HEIGHT - 3 - (_HEIGHT - 6) * ((v - low) / (high - low) if high > low else 0.5):.1f}"
        for index, v in enumerate(values)
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" aria-hidden="true">'
        f'<polyline points="{points}" fill="none" stroke="#3b6fd4" stroke-width="1.8" '
        'vector-effect="non-scaling-stroke"/></svg>'
    )


_EVIDENCE = (
    *("metric", "name", "unit", "before", "after", "low", "high"),
    *("first_step", "last_step", "words"),
)


@dataclass(frozen=True, slots=True, repr=False)
class RunVerdict:
    """What is happening to a run, since when, how one knows, and what to do.

    A cell that ends with it shows a card. `verdict` is the whole record, and `verdict.to_json()`
    what `echoscope diagnose --json` prints; the other fields are what one reads in a notebook.
    """

    run: str
    """How commands name the run."""
    verdict: Verdict

    @property
    def state(self) -> str:
        """healthy, converged, watch, recovering, collapsing, collapsed, not learning, insufficient
        evidence, evaluation."""
        return self.verdict.state.value

    @property
    def sentence(self) -> str:
        """The first part of the verdict: what it is, since when, and what that means."""
        return verdict_parts(self.verdict.text)[0][1]

    @property
    def evidence(self) -> pd.DataFrame:
        """What the verdict claims of each metric, most telling first.

        Columns: metric, name, unit, before, after, low, high, first_step, last_step, words.
        `before` is missing where nothing changed. `low` and `high` are the 95 % interval of
        `after`; missing where the noise is unknown.
        """
        rows = [
            (
                row.metric,
                metric(row.metric).name,
                metric(row.metric).unit,
                row.before,
                row.after,
                *(row.interval or (None, None)),
                *row.steps,
                row.sentence,
            )
            for row in evidence_rows(self.verdict)
        ]
        frame = pd.DataFrame(rows, columns=list(_EVIDENCE))
        return frame.astype(dict.fromkeys(("before", "after", "low", "high"), float))

    @property
    def examples(self) -> pd.DataFrame:
        """Turns that show the verdict: trajectory_id, turn, note. `Run.episode` opens one."""
        return pd.DataFrame(self.verdict.exemplars, columns=["trajectory_id", "turn", "note"])

    @property
    def advice(self) -> pd.DataFrame:
        """What to do, the first action first: text, command (empty where none helps), why."""
        rows = [(action.text, action.command, action.why) for action in self.verdict.actions]
        return pd.DataFrame(rows, columns=["text", "command", "why"])

    def __repr__(self) -> str:
        head = f"{self.run}: {self.verdict.state_words} (confidence {self.verdict.confidence})"
        return visible(f"{head}\n{self.verdict.text}", None)

    def _repr_html_(self) -> str:
        return _framed(
            f'<div class="es-nb-title">{escape(self.run, 200)}</div>',
            verdict_html.box(self.verdict),
            verdict_html.grounds(self.verdict),
        )


MAX_TURNS = 40
"""Of an episode that one card shows."""
_TEXT_CHARS = 600
"""Of a turn in a terminal."""


@dataclass(frozen=True, slots=True, repr=False)
class Episode:
    """One episode, with what the update learned of it.

    A cell that ends with it shows the dialogue. `trajectory` is the whole record, tokens included.
    """

    trajectory: Trajectory
    outcome: TrajectoryOutcome | None
    """None where no update has used it."""

    @property
    def turns(self) -> tuple[Turn, ...]:
        return self.trajectory.turns

    def __repr__(self) -> str:
        episode = self.trajectory
        success = {None: "success not defined", True: "solved", False: "failed"}[episode.is_success]
        lines = [
            f"{episode.id}: {success}, return {episode.episode_return:.3g}, "
            f"{episode.num_turns} turns, ended by {episode.stop_reason.value}"
        ]
        for turn in episode.turns[:MAX_TURNS]:
            lines += [
                f"turn {turn.index}, reward {turn.reward:.3g}",
                f"  observed: {_short(turn.observation)}",
                f"  replied:  {_short(turn.response)}",
            ]
        if episode.num_turns > MAX_TURNS:
            lines.append(f"{episode.num_turns - MAX_TURNS} more turns")
        return visible("\n".join(lines), None)

    def _repr_html_(self) -> str:
        return _framed(
            f'<div class="es-nb-title">{escape(self.trajectory.id)}</div>',
            replay_html.episode_html(self.trajectory, self.outcome, most_turns=MAX_TURNS),
            style=tokens.STYLE + replay_html.STYLE + STYLE,
        )


def _short(text: str) -> str:
    start, left_out = cut(" ".join(text.split()), _TEXT_CHARS)
    return f"{start} ..." if left_out else start


MAX_ALARMS = 3
"""Open alarms that a card names."""
MAX_NOTES = 20
_HAS_EPISODES = "SELECT count(*) > 0 FROM (FROM trajectories LIMIT 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCard:
    """What a card says. Texts are hostile until they are drawn."""

    name: str
    facts: Sequence[str]
    """Status, model and the like."""
    verdict: Verdict | None
    unjudged: str
    """What stands in place of a verdict."""
    tiles: Sequence[Tile]
    """None before the first step."""
    lines: Sequence[tuple[str, str]]
    """(alarm, note or what one types; the words for it)."""

    def to_html(self) -> str:
        facts = " &middot; ".join(escape(fact, 200) for fact in self.facts)
        cards = "".join(
            f'<div class="es-nb-tile" title="{attribute(tile.help)}"><span>{escape(tile.name)}'
            f"</span><b>{escape(tile.value)}</b>{_curve_svg(tile.spark)}"
            f"<span>{escape(tile.change)}</span></div>"
            for tile in self.tiles
        )
        return _framed(
            f'<div><span class="es-nb-title">{escape(self.name, 200)}</span> '
            f'<span class="es-quiet">{facts}</span></div>',
            f"<p>{self.unjudged}</p>" if self.verdict is None else verdict_html.box(self.verdict),
            f'<div class="es-nb-tiles">{cards}</div>',
            *(f"<p><b>{escape(k, 300)}</b> {escape(text, 600)}</p>" for k, text in self.lines),
        )

    def to_text(self) -> str:
        """For a terminal."""
        lines = [f"{self.name}: {', '.join(self.facts)}"]
        if self.verdict is None:
            lines.append(self.unjudged)
        else:
            lines.append(f"{self.verdict.state_words}: {verdict_parts(self.verdict.text)[0][1]}")
        width = max((len(tile.name) for tile in self.tiles), default=0)
        lines += [f"  {tile.name:<{width}}  {tile.value}  {tile.change}" for tile in self.tiles]
        lines += [f"{label}: {line_text}" for label, line_text in self.lines]
        return visible("\n".join(lines), None)


def card_of(
    run: RunReader, verdict: Verdict | None, *, name: str, typed: str, notes: Sequence[str]
) -> RunCard:
    """The card of a run as it stands now.

    Args:
        verdict: None where working it out would take long.
        typed: How a command names the run.
        notes: What is to be known of an import.
    """
    info, commands, now = run.info(), run.commands(), time.time()
    step_s = pace(run.steps().to_pandas())
    status = info_status(info, commands, step_s=step_s, now=now)
    planned = standing(info, commands, live_settings(run).now).steps
    keys = run.metric_keys()
    numbers = tiles(
        tables.outlines(run, tile_keys(keys)),
        keys,
        verdict=verdict,
        progress=progress_words(status, step_s, last_step=info.last_step, steps=planned),
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
    if not has_steps:
        lines.append((".refresh()", "look again once the first step is done"))
    else:
        lines += [(".diagnose()", "the verdict with its evidence")]
        lines += [(".plots()", "the figures; .plot(name) draws one")]
        if run.sql(_HAS_EPISODES).column(0)[0].as_py():
            lines.append(('.trajectories(where="success")', "episodes; .episode(id) shows one"))
        if not notes:  # those of an import say how to keep it
            lines.append((f"echoscope report {typed}", "one HTML file to pass on (in a shell)"))
    return RunCard(
        name=name,
        facts=[fact for fact in facts if fact],
        verdict=verdict,
        unjudged="No verdict yet: .diagnose() reads the episodes first, which takes a moment."
        if has_steps
        else "No step yet.",
        tiles=[tile for tile in numbers if has_steps and tile.change != NOTHING],
        lines=lines,
    )
