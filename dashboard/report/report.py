"""One file that tells what happened to a run: opens from disk, asks nothing of any network.

Everything stands in the page: plotly, figures as JSON, boards as data URIs. A content security
policy forbids all else. Texts of models, environments and files are escaped.
"""

from __future__ import annotations

import base64
import gzip
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape as escape_html
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import plotly.offline

from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.reader import RunInfo
from echoscope.store.records import Trajectory, TrajectoryOutcome
from echoscope.store.status import Origin, origin_of

from ..charts import charts
from ..charts import diagnosis as diagnosis_charts
from ..charts.alarm_timeline import timeline
from ..charts.curated import CHARTS, chart_curves, chart_keys, shown_charts
from ..charts.marks import command_words, outcome_words, run_marks
from ..charts.theme import STATES, shown_state
from ..data import queries
from ..data.alarm_history import AlarmHistory, histories
from ..data.curves import describe, step_axis
from ..data.diagnosis import (
    MAX_GROUP_STEPS,
    REGIME_KEYS,
    families_of,
    group_grid,
    regime_path,
    thin,
)
from ..escaping import escape, visible
from ..live import pulses, scripts
from ..replay import html as replay_html
from ..replay import tokens
from ..replay.heat import HEATS, available, trajectory_scale
from ..words import NONE, plain_config, setting_words
from . import verdict_html
from .evidence_rows import evidence_rows
from .page import PAGE, STYLE

MAX_CHOSEN = 8
"""Trajectories in a report."""
MAX_TURNS = 12
"""Of a trajectory that are shown."""
HEAT_ORDER = ("information", "advantage", "entropy", "logprob")
"""The first of them that a trajectory has colours its tokens."""

Progress = Callable[[str], None]


@dataclass(slots=True)
class _Page:
    """The parts of the page while it is made."""

    parts: list[str]
    figures: list[str]

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

    def table(self, rows: Sequence[dict[str, Any]]) -> None:
        if not rows:
            return
        head = "".join(f"<th>{escape(name)}</th>" for name in rows[0])
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(str(v), 2000)}</td>" for v in row.values()) + "</tr>"
            for row in rows
        )
        self.parts.append(
            f'<div class="wide"><table><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


def make_report(
    run_id: str, *, chosen: Sequence[str] = (), progress: Progress | None = None
) -> str:
    """The whole page as HTML text.

    Args:
        run_id: A run under the root of the dashboard's settings.
        chosen: Trajectory ids to show; without any, those that show the verdict, the worst and the
            best of the last step.
        progress: Told what is worked on.

    Raises:
        Problem: the run, or a chosen trajectory, cannot be read.
    """
    say = progress or (lambda _: None)
    say("verdict")
    info = queries.info(run_id)
    verdict = queries.verdict(run_id, wait_s=600.0)
    page = _Page([], [])
    _verdict(page, verdict)
    say("charts")
    page.heading("Curves")
    _curves(page, run_id)
    say("diagnosis")
    _diagnosis(page, run_id)
    say("alarms and commands")
    _alarms(page, run_id, info)
    _commands(page, run_id)
    say("trajectories")
    _trajectories(page, run_id, tuple(chosen) or _telling(run_id, verdict))
    page.heading("Configuration")
    config = plain_config(info)
    page.table(
        [{"setting": key, "value": setting_words(value)} for key, value in sorted(config.items())]
    )
    text = PAGE.format(
        title=escape_html(visible(f"{run_id}: {verdict.state.value}", 200)),
        head=_head(info),
        body="\n".join(page.parts),
        figures="\n".join(page.figures),
        style=STYLE + _inner(tokens.STYLE) + _inner(replay_html.STYLE),
        script=scripts.text("report.js"),
        plotly=_packed(plotly.offline.get_plotlyjs()),
    )
    return _without_folder(text, queries.path_of(run_id).parent)


def _without_folder(text: str, root: Path) -> str:
    """`runs/demo` in place of `/home/ann/work/runs/demo`: a reader sits at another machine."""
    folder = root.absolute().parent
    return text if folder == folder.parent else text.replace(f"{folder}/", "")


def _packed(script: str) -> str:
    """A script that the page unpacks: plotly's, of 4.7 MB, is 1.9 MB this way.

    The installed package has only the whole library, no smaller bundle.
    """
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode("ascii")


def _inner(style: str) -> str:
    return style.removeprefix("<style>").removesuffix("</style>")


def _head(info: RunInfo) -> str:
    started = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.created_at))
    facts = [
        pulses.status_line(info.path.name).text,
        f"started {started}",
        f"model {info.base_model}" if info.base_model else "",
        f"from run {info.parent_run_id}" if info.parent_run_id else "",
        *info.tags,
    ]
    shown = " &middot; ".join(escape(fact) for fact in facts if fact)
    return f"<h1>{escape(info.path.name)}</h1><p class='quiet'>{shown}</p>"


def _verdict(page: _Page, verdict: Verdict) -> None:
    state = verdict.state.value
    color = STATES[shown_state(verdict)]
    page.parts.append(
        f'<section class="verdict" style="border-color:{color}">'
        f'<b style="color:{color}">{escape(state)}</b> '
        f'<span class="quiet">as of step {verdict.last_step}, confidence '
        f"{escape(verdict.confidence)}</span>{verdict_html.parts(verdict)}</section>"
    )
    page.table([row.cells() for row in evidence_rows(verdict)])
    for title, texts in verdict_html.lists(verdict):
        items = "".join(f"<li>{escape(text, 1000)}</li>" for text in texts)
        page.parts.append(f"<h3>{escape(title)}</h3><ul>{items}</ul>")


def _curves(page: _Page, run_id: str) -> None:
    steps, known = queries.step_table(run_id), queries.metric_keys(run_id)
    if steps.empty:
        page.words("No step was finished.")
        return
    data = queries.series(run_id, chart_keys(CHARTS, known))
    axis = step_axis(steps)
    marks = run_marks(queries.alarms(run_id), queries.commands(run_id), steps)
    is_ours = origin_of(queries.info(run_id).config) is Origin.TRAINED
    shown, absent = shown_charts(CHARTS, known, is_ours=is_ours)
    page.parts.append('<div class="grid">')
    for chart in shown:
        curves = chart_curves(chart, data, steps, known)
        figure = charts.line_chart(curves, axis, marks, None, **chart.words)
        page.figure(figure, f"{chart.title}. {describe(curves)}")
    page.parts.append("</div>")
    if absent:
        titles = ", ".join(chart.title for chart in absent)
        page.words(f"Not in the data of this run: {titles}.")


def _diagnosis(page: _Page, run_id: str) -> None:
    path = regime_path(queries.series(run_id, REGIME_KEYS, phase="train"))
    steps = thin(queries.trajectory_steps(run_id), MAX_GROUP_STEPS)
    grid = group_grid(queries.groups_of(run_id, steps))
    measured = queries.diagnostic_steps(run_id, "information")
    if path is None and grid.empty and not measured:
        return
    page.heading("Reasoning and rewards")
    page.parts.append('<div class="grid">')
    if path is not None:
        page.figure(diagnosis_charts.regime_plane(path), "Regime plane of the run")
    if measured:
        records = queries.diagnostics(run_id, measured[-1])
        known = [families_of(one) for one in records if one.kind == "information"]
        shown = [one for found in known for one in found.values() if len(one.curve)]
        if shown:
            figure = diagnosis_charts.information_curve(shown, {}, {})
            page.figure(figure, "Information curve")
    if not grid.empty:
        page.figure(diagnosis_charts.group_map(grid), "Groups by their rewards")
    page.parts.append("</div>")
    page.words(
        "Regime plane: where reasonings vary (right) and depend on their prompt (up). Curve: nats "
        "that the first tokens tell about the prompt. Groups: only mixed ones teach."
    )


def _alarms(page: _Page, run_id: str, info: RunInfo) -> None:
    found = histories(queries.alarms(run_id), queries.commands(run_id))
    page.heading("Alarms")
    if not found:
        is_imported = origin_of(info.config) is Origin.IMPORTED
        why = " Alarms are raised while a training runs; this run was imported afterwards."
        page.words(f"None was raised.{why * is_imported}")
        return
    page.figure(timeline(found, info.last_step), "Alarms over the run")
    page.table(
        [
            {
                "rule": one.latest.rule,
                "severity": one.severity_words,
                "raised": one.raised.step,
                "began": NONE if one.raised.onset_step is None else one.raised.onset_step,
                "cleared": "open" if one.is_open else one.cleared_step,
                "what happened": f"{one.latest.message} {one.ending}".strip(),
                "advice": _advice(run_id, one),
            }
            for one in found[:100]
        ]
    )


def _advice(run_id: str, one: AlarmHistory) -> str:
    found = queries.alarm_advice(run_id, one.latest, is_open=one.is_open)
    return f"{found.text} {found.command}".strip() or NONE


def _commands(page: _Page, run_id: str) -> None:
    states = queries.commands(run_id)
    if not states:
        return
    page.heading("Commands")
    page.table(
        [
            {
                "who": state.command.issued_by or NONE,
                "what": command_words(state),
                "why": state.command.reason or NONE,
                "outcome": outcome_words(state),
            }
            for state in states[-200:]
        ]
    )


def _telling(run_id: str, verdict: Verdict) -> tuple[str, ...]:
    """Trajectories that show the verdict, then the worst and the best of the last step."""
    shown = [one.trajectory_id for one in verdict.exemplars]
    steps = queries.trajectory_steps(run_id)
    if steps:
        rows = queries.listing(run_id, steps[-1])
        trained = rows[rows["split"].isin(["train", "import"])]
        rows = (rows if trained.empty else trained).sort_values(["episode_return", "id"])
        shown += [str(rows["id"].iloc[0]), str(rows["id"].iloc[-1])]
    return tuple(dict.fromkeys(shown))[:MAX_CHOSEN]


def _trajectories(page: _Page, run_id: str, chosen: Sequence[str]) -> None:
    page.heading("Trajectories")
    if not chosen:
        page.words("None are stored.")
    for trajectory_id in chosen:
        trajectory = queries.trajectory(run_id, trajectory_id)
        outcome = queries.outcome(run_id, trajectory_id)
        page.parts.append(
            f'<details open id="{escape_html(trajectory.id)}"><summary>{escape(trajectory.id)}, '
            f"step {trajectory.step}</summary>"
            + replay_html.trajectory_facts(trajectory, outcome)
            + _turns(run_id, trajectory, outcome)
            + "</details>"
        )


def _turns(run_id: str, trajectory: Trajectory, outcome: TrajectoryOutcome | None) -> str:
    known = available(trajectory, outcome)
    heat = HEATS.get(next((name for name in HEAT_ORDER if name in known), ""))
    scale = trajectory_scale(heat, [(trajectory, outcome)]) if heat else None
    out = [tokens.legend_html(heat, scale)] if heat and scale else []
    for turn in trajectory.turns[:MAX_TURNS]:
        values = heat.read(turn, outcome) if heat else None
        said = tokens.text_html(turn)
        if heat and scale and values is not None and turn.response_tokens is not None:
            pieces = queries.token_pieces(run_id, turn.response_tokens.tolist())
            if pieces is not None:
                said = tokens.heat_html(turn, heat, values, scale, pieces=pieces)
        out.append(
            '<div class="turn"><div>'
            + replay_html.turn_boards(trajectory, turn)
            + replay_html.text_box(turn.observation)
            + "</div><div>"
            + replay_html.heading(f"turn {turn.index}")
            + replay_html.turn_facts(turn)
            + said
            + "</div></div>"
        )
    left_out = trajectory.num_turns - MAX_TURNS
    if left_out > 0:
        out.append(f'<p class="quiet">{left_out} more turns are not shown.</p>')
    return "".join(out)
