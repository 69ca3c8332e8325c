"""One file that tells what happened to a run: opens from disk, asks nothing of any network.

Everything stands in the page: charts as SVG, boards as data URIs, and no script. A content security
policy forbids all else. Texts of models, environments and files are escaped; nothing in the frame
of the page comes from a run.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from html import escape as escape_html
from pathlib import Path

from echoscope.diagnostics.judge.record import Shown, Verdict
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.errors import QueryError
from echoscope.store.models import Detokenizer, load_detokenizer, tokenizer_folders
from echoscope.store.query.alarms import histories
from echoscope.store.reader import RunReader, open_run
from echoscope.store.records import Trajectory, TrajectoryOutcome, parse_trajectory_id
from echoscope.store.steer.settings import flat
from echoscope.text.sentences import capitalised

from ..charts import theme
from ..charts.curated import EVIDENCE
from ..charts.marks import command_rows, run_marks
from ..charts.run_figures import FIGURES, RunFigures, figures_of
from ..charts.timeline import TIMELINE_HELP, settings_held, timeline
from ..data import tables
from ..data.alarm_history import alarm_rows
from ..data.curves import describe
from ..data.diagnosis import situation
from ..escaping import escape, visible
from ..replay import html as replay_html
from ..replay import tokens
from ..words import setting_words
from . import verdict_html
from .claim_charts import claim_charts
from .evidence_rows import evidence_rows
from .svg import picture
from .telling import EXAMPLES, example_html, telling

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""No request may leave the page and no script runs in it, whatever stands in it."""

STYLE = theme.style_sheet(Path(__file__).parent / "css" / "report.css")

PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    '<meta name="referrer" content="no-referrer"><title>{title}</title>'
    "{styles}</head><body>{head}{body}</body></html>"
)


MAX_CHOSEN = 8
"""Trajectories in a report."""
MAX_TURNS = 12
"""Of a trajectory that are shown."""
MAX_EPISODES_BYTES = 1_000_000
"""Of all of them together: a report is sent by mail."""
MAX_COMMANDS = 200
_FOLDERS = re.compile(r"(?<![\w./:])(?:/[^/\s\"',:]+)+/")
"""The folders of an absolute path; no part of an address."""

Progress = Callable[[str], None]


def make_report(path: Path, *, chosen: Sequence[str] = (), progress: Progress | None = None) -> str:
    """The whole page as HTML text.

    Args:
        path: The run's folder.
        chosen: Trajectory ids to show; without any, those that show the verdict.
        progress: Told what is worked on.

    Raises:
        StoreError: the run cannot be read.
        QueryError: the run has no such trajectory.
    """
    say = progress or (lambda _: None)
    say("verdict")
    run = open_run(path)
    verdict = diagnose(run)
    info = run.info()
    figures = figures_of(run, verdict)
    examples, reason = _telling(run, verdict)
    say("charts")
    parts = [
        verdict_html.box(verdict),
        *_claims(figures, verdict),
        *_examples(run, examples, reason),
        *_settings(run, verdict, figures),
        verdict_html.grounds(verdict),
        *_curves(figures),
    ]
    say("alarms and commands")
    parts += _happened(run)
    say("trajectories")
    names = tuple(dict.fromkeys(example.trajectory_id for example in examples))
    parts += _trajectories(run, tuple(chosen) or names[:MAX_CHOSEN])
    rows = [
        {"setting": key, "value": _without_folders(setting_words(value))}
        for key, value in sorted(flat(info.config).items())
    ]
    parts.append(f"<details><summary>Configuration</summary>{verdict_html.table(rows)}</details>")
    text = PAGE.format(
        title=escape_html(visible(f"{run.path.name}: {verdict.state_words}", 200)),
        head=_head(run),
        body="\n".join(parts),
        styles=STYLE + verdict_html.STYLE + tokens.STYLE + replay_html.STYLE,
    )
    # `runs/demo` in place of `/home/ann/work/runs/demo`: a reader sits at another machine.
    folder = run.path.absolute().parents[1]
    return text if folder == folder.parent else text.replace(f"{folder}/", "")


def _without_folders(text: str) -> str:
    """With paths of this machine cut to their last part: `.../qwen`."""
    return _FOLDERS.sub(".../", text)


def _heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def _section(title: str, figures: Sequence[str]) -> list[str]:
    """Figures side by side under a heading; nothing without figures."""
    grid = f'<div class="grid">{"".join(figures)}</div>'
    return [_heading(title), grid] if figures else []


def _figure(picture: str, caption: str = "", title: str = "") -> str:
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f"<figure>{head}{picture}<figcaption>{escape(caption, 1000)}</figcaption></figure>"


def _claims(figures: RunFigures, verdict: Verdict) -> list[str]:
    """The charts that prove the verdict, each with what is claimed of it."""
    drawn = [
        _figure(picture(chart.spec, chart.alt), capitalised("; ".join(chart.sentences)))
        for chart in claim_charts(figures, evidence_rows(verdict))
    ]
    return _section("What the verdict rests on", drawn)


def _examples(run: RunReader, examples: Sequence[Shown], reason: str) -> list[str]:
    """Replies to different prompts side by side, which show the verdict."""
    drawn = []
    for example in examples[:EXAMPLES]:
        turns = run.trajectory(example.trajectory_id).turns
        if example.turn < len(turns):
            title = f"Step {parse_trajectory_id(example.trajectory_id)[1]}, turn {example.turn}"
            html = example_html(turns[example.turn], example)
            drawn.append(_figure(html, capitalised(example.note), title))
    return _section(capitalised(reason or "examples"), drawn)


def _settings(run: RunReader, verdict: Verdict, figures: RunFigures) -> list[str]:
    held = settings_held(situation(run), verdict, figures.last_step)
    marks = run_marks(*figures.happened(), figures.steps)
    spec = timeline(held, marks, verdict, figures.last_step)
    if spec is None:
        return []
    drawn = picture(spec, "Settings, alarms and commands over the steps")
    return [_heading("What was set, and when"), _figure(drawn, TIMELINE_HELP)]


def _head(run: RunReader) -> str:
    info, now = run.info(), time.time()
    facts = [
        run.status().words(now),
        f"step {info.last_step}" if info.last_step >= 0 else "",
        f"started {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.created_at))}",
        f"model {_without_folders(info.base_model)}" if info.base_model else "",
        f"from run {info.parent_run_id}" if info.parent_run_id else "",
        *info.tags,
    ]
    facts_html = " &middot; ".join(escape(fact, 200) for fact in facts if fact)
    return f"<h1>{escape(run.path.name, 200)}</h1><p class='es-quiet'>{facts_html}</p>"


def _curves(figures: RunFigures) -> list[str]:
    """Every other figure that the run has data for."""
    drawn = []
    proven = ("success", EVIDENCE)
    for chart in (chart for chart in figures.charts() if chart.name not in proven):
        curves = figures.curves(chart)
        alt = f"{chart.title}. {describe(curves)}"
        drawn.append(_figure(picture(figures.spec(chart, curves), alt)))
    for figure in FIGURES.values():
        spec = figure.draw(figures.run, None)
        if spec is not None:
            drawn.append(_figure(picture(spec, figure.title), figure.help, figure.title))
    return _section("Curves", drawn)


def _happened(run: RunReader) -> list[str]:
    """The alarms and the commands, as tables."""
    commands = run.commands()
    alarms = alarm_rows(histories(run.alarms(), commands))
    parts = [_heading("Alarms"), verdict_html.table(alarms) or "<p>None was raised.</p>"]
    rows = command_rows(commands[-MAX_COMMANDS:])
    return parts + ([_heading("Commands"), verdict_html.table(rows)] if rows else [])


def _telling(run: RunReader, verdict: Verdict) -> tuple[Sequence[Shown], str]:
    """Places that show the verdict; without exemplars, some of the last step."""
    steps = tables.trajectory_steps(run)
    return telling(verdict, run.listing(steps[-1]).to_pandas()) if steps else ((), "")


def _trajectories(run: RunReader, chosen: Sequence[str]) -> list[str]:
    parts = [_heading("Trajectories")]
    if not chosen:
        parts.append("<p>None are stored.</p>")
    folders = tokenizer_folders(run.path, run.info().base_model, run.checkpoints())
    detokenizer = load_detokenizer(tuple(folders))
    room = MAX_EPISODES_BYTES
    for number, name in enumerate(chosen):
        try:
            trajectory, outcome = run.trajectory(name), run.outcome(name)
        except (KeyError, ValueError) as error:
            raise QueryError(f"the run has no trajectory {name[:80]!r}") from error
        episode = _episode(trajectory, outcome, detokenizer, room)
        room -= len(episode.encode())
        parts.append(
            f'<details{"" if number else " open"} id="{escape_html(trajectory.id)}">'
            f"<summary>{escape(trajectory.id)}, step {trajectory.step}</summary>{episode}</details>"
        )
    return parts


def _episode(
    trajectory: Trajectory,
    outcome: TrajectoryOutcome | None,
    detokenizer: Detokenizer | None,
    room: int,
) -> str:
    """An episode as far as it fits into so many bytes: first it loses its colours, then turns."""
    for most_turns, spelled_by in ((MAX_TURNS, detokenizer), (MAX_TURNS, None), (2, None)):
        episode = replay_html.episode_html(
            trajectory, outcome, detokenizer=spelled_by, most_turns=most_turns
        )
        if len(episode.encode()) <= room:
            return episode
    return "<p>Its text is too long for this report. Name fewer trajectories with -t.</p>"
