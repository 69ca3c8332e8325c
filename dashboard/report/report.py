"""One file that tells what happened to a run: opens from disk, asks nothing of any network.

Everything stands in the page: plotly, figures as JSON, boards as data URIs. A content security
policy forbids all else. Texts of models, environments and files are escaped.
"""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape as escape_html
from pathlib import Path

import plotly.graph_objects as go
import plotly.offline

from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.store.errors import QueryError
from echoscope.store.models import load_detokenizer, tokenizer_folders
from echoscope.store.reader import RunReader, open_run

from ..charts.marks import command_rows
from ..charts.run_figures import FIGURES, figures_of
from ..data import tables
from ..data.alarm_history import alarm_rows, histories
from ..data.curves import describe
from ..escaping import escape, visible
from ..live import scripts
from ..replay import html as replay_html
from ..replay import tokens
from ..words import flat, setting_words
from . import verdict_html
from .page import PAGE, STYLE
from .telling import telling

MAX_CHOSEN = 8
"""Trajectories in a report."""
MAX_TURNS = 12
"""Of a trajectory that are shown."""
MAX_COMMANDS = 200

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Page:
    """The parts of the page while it is made."""

    parts: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)

    def heading(self, text: str) -> None:
        self.parts.append(f"<h2>{escape(text)}</h2>")

    def words(self, text: str) -> None:
        self.parts.append(f"<p>{escape(text, 4000)}</p>")

    def figure(self, figure: go.Figure, alt: str) -> None:
        """Drawn by the script of the page; `</` cannot end the element that holds the JSON."""
        text = str(figure.to_json()).replace("</", "<\\/").replace("<!--", "<\\!--")
        self.figures.append(f'<script type="application/json" class="figure">{text}</script>')
        self.parts.append(
            f'<div class="chart" role="img" aria-label="{escape_html(visible(alt, 300))}"></div>'
        )


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
    page = _Page()
    page.parts += [verdict_html.box(verdict), verdict_html.grounds(verdict)]
    say("charts")
    _figures(page, run, verdict)
    say("alarms and commands")
    _happened(page, run)
    say("trajectories")
    _trajectories(page, run, tuple(chosen) or _telling(run, verdict))
    page.heading("Configuration")
    config = sorted(flat(run.info().config).items())
    rows = [{"setting": key, "value": setting_words(value)} for key, value in config]
    page.parts.append(verdict_html.table(rows))
    styles = (verdict_html.STYLE, tokens.STYLE, replay_html.STYLE)
    text = PAGE.format(
        title=escape_html(visible(f"{run.path.name}: {verdict.state.value}", 200)),
        head=_head(run),
        body="\n".join(page.parts),
        figures="\n".join(page.figures),
        style=STYLE,
        styles="".join(styles),
        script=scripts.text("report.js"),
        plotly=_packed(plotly.offline.get_plotlyjs()),
    )
    # `runs/demo` in place of `/home/ann/work/runs/demo`: a reader sits at another machine.
    folder = run.path.absolute().parents[1]
    return text if folder == folder.parent else text.replace(f"{folder}/", "")


def _packed(script: str) -> str:
    """A script that the page unpacks: plotly's, of 4.7 MB, is 1.9 MB this way."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode("ascii")


def _head(run: RunReader) -> str:
    info, now = run.info(), time.time()
    facts = [
        run.status().words(now),
        f"step {info.last_step}" if info.last_step >= 0 else "",
        f"started {time.strftime('%Y-%m-%d %H:%M', time.localtime(info.created_at))}",
        f"model {info.base_model}" if info.base_model else "",
        f"from run {info.parent_run_id}" if info.parent_run_id else "",
        *info.tags,
    ]
    facts_html = " &middot; ".join(escape(fact, 200) for fact in facts if fact)
    return f"<h1>{escape(run.path.name, 200)}</h1><p class='es-quiet'>{facts_html}</p>"


def _figures(page: _Page, run: RunReader, verdict: Verdict) -> None:
    """Every figure that the run has data for."""
    drawn = figures_of(run, verdict)
    page.heading("Curves")
    page.parts.append('<div class="grid">')
    for chart in drawn.charts():
        curves = drawn.curves(chart)
        figure = go.Figure(drawn.spec(chart, curves))
        page.figure(figure, f"{chart.title}. {describe(curves)}")
    page.parts.append("</div>")
    for run_figure in FIGURES:
        run_figure_drawn = run_figure.draw(run, None)
        if run_figure_drawn is not None:
            page.parts.append(f"<h3>{escape(run_figure.title)}</h3>")
            page.figure(run_figure_drawn, run_figure.title)
            page.words(run_figure.help)


def _happened(page: _Page, run: RunReader) -> None:
    """The alarms and the commands, as tables."""
    commands = run.commands()
    alarms = histories(run.alarms(), commands)
    page.heading("Alarms")
    page.parts.append(verdict_html.table(alarm_rows(alarms)) or "<p>None was raised.</p>")
    rows = command_rows(commands[-MAX_COMMANDS:])
    if rows:
        page.heading("Commands")
        page.parts.append(verdict_html.table(rows))


def _telling(run: RunReader, verdict: Verdict) -> tuple[str, ...]:
    """Trajectories that show the verdict; without exemplars, some of the last step."""
    steps = tables.trajectory_steps(run)
    if not steps:
        return ()
    places = telling(verdict, run.listing(steps[-1]).to_pandas()).places
    return tuple(dict.fromkeys(exemplar.trajectory_id for exemplar in places))[:MAX_CHOSEN]


def _trajectories(page: _Page, run: RunReader, chosen: Sequence[str]) -> None:
    page.heading("Trajectories")
    if not chosen:
        page.words("None are stored.")
    folders = tokenizer_folders(run.path, run.info().base_model, run.checkpoints())
    detokenizer = load_detokenizer(tuple(folders))
    for name in chosen:
        try:
            trajectory, outcome = run.trajectory(name), run.outcome(name)
        except (KeyError, ValueError) as error:
            raise QueryError(f"the run has no trajectory {name[:80]!r}") from error
        episode = replay_html.episode_html(
            trajectory, outcome, detokenizer=detokenizer, most_turns=MAX_TURNS
        )
        page.parts.append(
            f'<details open id="{escape_html(trajectory.id)}"><summary>{escape(trajectory.id)}, '
            f"step {trajectory.step}</summary>{episode}</details>"
        )
