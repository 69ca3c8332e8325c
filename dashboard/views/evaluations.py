"""Evaluations: who solves which tasks, ranked among those that played the same ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pandas as pd
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from echoscope.dashboard.charts.evaluations import MAX_DRAWN, success_figure
from echoscope.dashboard.data import queries
from echoscope.dashboard.data.evaluations import (
    ALIKE,
    APART,
    BEST,
    UNKNOWN,
    EvaluationGroup,
    Played,
    Ranked,
    StoredEvaluations,
    grouped,
    stored_evaluations,
)
from echoscope.dashboard.escaping import visible
from echoscope.dashboard.live import figures
from echoscope.dashboard.live.refreshing import beat
from echoscope.dashboard.page import links, ui
from echoscope.dashboard.page.evaluation_box import resume_command
from echoscope.dashboard.web.settings import settings
from echoscope.dashboard.words import NONE, plain
from echoscope.diagnostics.measure.outcomes import shown_ks
from echoscope.store.log.layout import shown_path
from echoscope.store.query.database import quote
from echoscope.store.query.listing import RunDetails, RunRow, row_status
from echoscope.text.amounts import counted, listed

PER_PAGE = 6
"""Groups."""
READ_S = 0.5
"""For reading evaluations before the page is drawn; the others are read beside it."""
EVERY_S, WAITING_S = 5.0, 1.0
MAX_NAMED = 6
"""Evaluations that a sentence names."""
_NAME_WIDTH = 180
"""Pixels: on a telephone success stands beside it, and the whole name in a tooltip."""
_PERCENT = st.column_config.NumberColumn(format="%.1f %%")
_COLUMNS: dict[str, Any] = {
    "place": st.column_config.NumberColumn("#", width=40, help="Place by success."),
    "who": st.column_config.TextColumn(
        "Who", width=_NAME_WIDTH, help="The model or checkpoint that played."
    ),
    "run": st.column_config.TextColumn(
        "Evaluation", width=_NAME_WIDTH, help="The folder of the evaluation."
    ),
    "success": st.column_config.TextColumn(
        "Success (95 %)", help="Mean over tasks. The interval is over tasks, not over attempts."
    ),
    "difference": st.column_config.TextColumn(
        "Against the best",
        help="Success minus that of the best, task by task, in points, with its 95 % interval. "
        "If the interval holds 0, the two cannot be told apart.",
    ),
    "return": st.column_config.NumberColumn("Return", format="%.3g"),
    "turns": st.column_config.NumberColumn("Turns", format="%.3g", help="Of an episode."),
    "valid": st.column_config.NumberColumn(
        "Valid actions", format="%.0f %%", help="Turns whose action the world accepted."
    ),
    "tokens": st.column_config.NumberColumn(
        "Tokens", format="%.4g", help="That the player wrote in an episode."
    ),
    "cost": st.column_config.NumberColumn(
        "Cost", format="$ %.4g", help="Of all episodes in this world, by the provider's prices."
    ),
    "episodes": st.column_config.TextColumn("Episodes", help="Of all worlds that it plays."),
    "replay": st.column_config.LinkColumn("Replay", display_text="open", help="Its episodes."),
}


def draw(_: DeltaGenerator) -> None:
    evaluations = stored_evaluations()
    if not evaluations.rows:
        beat("none", EVERY_S, _none, has_news=lambda: bool(stored_evaluations().rows))
        return
    is_waiting = evaluations.num_waiting > 0

    def has_news() -> bool:
        now = stored_evaluations()
        # Once everything is read, the page goes on at a slower beat.
        return not now.rows or (is_waiting and not now.num_waiting)

    beat("evaluations", WAITING_S if is_waiting else EVERY_S, _all, has_news=has_news)


def _none() -> None:
    root = shown_path(settings().root)
    ui.empty(
        f"There are no evaluations under {root} yet. This makes one in about a minute; name a "
        "run's folder in place of `tiny` to evaluate its best checkpoint:",
        f"echoscope eval tiny --env frozen_lake --tasks 60 --siblings 4 --root {root}",
    )
    if not queries.runs(most=ui.MAX_PICKED):
        ui.empty_root()


def _all() -> None:
    evaluations = stored_evaluations(within_s=READ_S)
    if evaluations.num_waiting:
        st.caption(f"{counted(evaluations.num_waiting, 'evaluation')} still to be read.")
    asked = st.query_params.get("run")
    groups = sorted(grouped(evaluations.played), key=lambda g: (not g.has(asked), len(g.rows) == 1))
    num_pages = -(-len(groups) // PER_PAGE)
    page = 1
    if num_pages > 1:
        with st.container(horizontal=True, vertical_alignment="center"):
            page = st.pagination(num_pages, key="sets", bind="query-params")
            st.caption(f"{len(groups):,} sets of tasks")
    for number, group in enumerate(groups[(page - 1) * PER_PAGE : page * PER_PAGE]):
        with st.container(key=f"group_{number}"):
            _group(group, evaluations, number)
    if groups:
        st.caption(
            "Ranks compare evaluations of the same tasks only. An open grey dot is lower than the "
            "best; a filled one cannot be told apart from it. All intervals are 95 %, over tasks. "
            "Two evaluations are compared task by task, so they may differ although their own "
            "intervals overlap. With many rows, the success of the best is partly luck: evaluate "
            "it again with another --seed."
        )
    _rest(evaluations)


def _group(group: EvaluationGroup, evaluations: StoredEvaluations, number: int) -> None:
    tag, env_id = group.world
    world = tag if tag == env_id or not env_id else f"{tag} ({env_id})"
    seeds = f", seed {', '.join(map(str, group.seeds))}" if group.seeds else ""
    st.subheader(plain(f"{world}: {counted(group.num_tasks, 'task')}{seeds}"), anchor=False)
    st.text(visible(summary(group), 2_000))
    if len(group.rows) > 1:
        figure = success_figure(group)
        alt = f"Success of {counted(len(group.rows), 'evaluation')} with intervals, the best first"
        figures.show(figure, alt, key=f"success_{number}", revision=f"{group.world}")
        if len(group.rows) > MAX_DRAWN:
            st.caption(f"The chart shows the best {MAX_DRAWN} of {len(group.rows)}.")
    st.dataframe(
        table(group),
        hide_index=True,
        placeholder=NONE,
        column_config=_COLUMNS | dict.fromkeys(_rates_of(group), _PERCENT),
        alt=visible(f"Evaluations on {world}", 200),
    )
    for row in group.rows:
        if not row.played.is_whole:
            _unfinished(evaluations.rows[row.played.run_id], row.played)


def summary(group: EvaluationGroup) -> str:
    """Which is best, and which cannot be told apart from it. Hostile."""
    best, *others = group.rows
    success = best.here.table.success
    if success.value != success.value:
        return "No outcome of an episode is known, so there is nothing to rank."
    rate = success.as_rate()
    if not others:
        return f"Only {_named([best])} played these tasks: success {rate}."
    parts = [f"Best: {_named([best])}, success {rate}."]
    alike, unknown, apart = (
        [row for row in others if row.standing == standing] for standing in (ALIKE, UNKNOWN, APART)
    )
    if alike:
        why = "because the interval of the difference holds 0"
        parts.append(f"Cannot be told apart from it, {why}: {_named(alike)}.")
    if unknown:
        why = "because they have fewer than two tasks with a known outcome in common"
        parts.append(f"Cannot be compared with it, {why}: {_named(unknown)}.")
    if apart:
        parts.append(f"Lower: {_named(apart)}.")
    return " ".join(parts)


def _named(rows: Sequence[Ranked]) -> str:
    return listed([f"{row.played.name} ({row.played.run_id})" for row in rows], MAX_NAMED)


def _ks(group: EvaluationGroup) -> list[int]:
    return shown_ks(max((max(r.here.table.pass_at, default=1) for r in group.rows), default=1))


def _rates_of(group: EvaluationGroup) -> list[str]:
    return [f"{name}{k}" for name in ("pass@", "pass^") for k in _ks(group)]


def table(group: EvaluationGroup) -> pd.DataFrame:
    """A row an evaluation, the best first; columns in which no row has anything are left out."""
    ks = _ks(group)
    cells = []
    for rank, row in enumerate(group.rows, 1):
        found_here, played = row.here.table, row.played
        rates = {f"pass@{k}": found_here.pass_at.get(k) for k in ks}
        rates |= {f"pass^{k}": found_here.pass_all.get(k) for k in ks}
        cells.append(
            {
                "place": rank,
                "who": visible(played.name, 120),
                "success": found_here.success.as_rate(),
                "difference": difference_words(row),
                "run": visible(played.run_id, 120),
                "replay": _replay(played, group),
                **{name: None if e is None else 100 * e.value for name, e in rates.items()},
                "return": found_here.episode_return.value,
                "turns": found_here.num_turns.value,
                "valid": 100 * found_here.valid_frac.value,
                "tokens": found_here.num_tokens.value or None,
                "cost": row.here.cost,
                "episodes": played.progress,
            }
        )
    frame = pd.DataFrame(cells)
    left_out = [name for name in ("tokens", "cost") if frame[name].isna().all()]
    left_out += ["place", "difference"] if len(group.rows) == 1 else []
    return frame.drop(columns=left_out)


def _replay(played: Played, group: EvaluationGroup) -> str:
    """Where the episodes of this world can be read."""
    where = f"tag = {quote(group.world[0])}" if len(played.worlds) > 1 else None
    return links.url("replay", run=played.run_id, where=where)


def difference_words(row: Ranked) -> str:
    """How far an evaluation is from the best, in points, and whether that is beyond chance."""
    if row.difference is None:
        return BEST
    if row.standing == UNKNOWN:
        return "not comparable"
    value, low, high = (
        100 * number for number in (row.difference.value, row.difference.low, row.difference.high)
    )
    difference = f"{value:+.1f} ({low:+.1f} to {high:+.1f})"
    return f"{difference}, not told apart" if row.standing == ALIKE else f"{difference}, lower"


def _unfinished(row: RunRow, played: Played) -> None:
    """How far an evaluation has come, and the command that plays the rest."""
    now = time.time()
    status = row_status(row, RunDetails(), now).words(now)
    may = " Short episodes end first, so its numbers may change." if played.num_played else ""
    line = f"{row.run_id} is not complete: {played.progress} episodes were played, {status}.{may}"
    st.text(visible(line, 400))
    command = resume_command(row.status, row.path)
    if command:
        ui.command(command)


def _rest(evaluations: StoredEvaluations) -> None:
    """Evaluations without an episode, and those that cannot be read."""
    for played in evaluations.played:
        if not played.num_played:
            _unfinished(evaluations.rows[played.run_id], played)
    for run_id, why in evaluations.unreadable.items():
        st.text(visible(f"{run_id} cannot be shown: {why}", 400))


ui.frame("Evaluations", draw)
