"""A step as a strip of its groups: a cell per episode, from which the episode opens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd
import streamlit as st

from echoscope.store.records import StopReason, parse_trajectory_id
from echoscope.store.steer.episode_notes import EpisodeNotes
from echoscope.text.amounts import counted

from ..charts.theme import style_sheet
from ..escaping import visible
from ..live.scripts import component
from ..words import kept_word, number_words, success_word

MAX_EPISODES = 4_096
"""Of a step, first groups first."""
SOLVED, FAILED, CUT, UNKNOWN = "solved", "failed", "cut off", "unknown"
_CSS: Mapping[str, str] = {
    SOLVED: "es-solved",
    FAILED: "es-failed",
    CUT: "es-cut-off",
    UNKNOWN: "es-unsaid",
}
"""How an episode ended -> its shape and colour."""
STYLE = style_sheet(Path(__file__).parent / "look" / "strip.css")


def outcome_of(is_success: Any, stop_reason: str) -> str:
    """How an episode ended: solved, cut off by a limit or an error, failed, or unknown."""
    word = success_word(is_success)
    if word != SOLVED and stop_reason in _CUTS:
        return CUT
    return word


_CUTS = {reason.value for reason in StopReason if reason.is_truncated}


def groups(rows: pd.DataFrame, notes: EpisodeNotes) -> list[dict[str, Any]]:
    """The groups of a step in order, as `strip.js` takes them.

    Args:
        rows: Of `trajectories`, one step and one split.
    """
    rows = rows.sort_values(["group_index", "sibling_index", "id"]).head(MAX_EPISODES)
    records = rows.to_dict("records")
    if rows["group_index"].is_unique:  # their numbers would take more room than they do
        cells = [_cell(row, notes) for row in records]
        return [{"name": "", "about": "Episodes", "cells": cells}]
    out = []
    for index, siblings in groupby(records, key=itemgetter("group_index")):
        members = [*siblings]
        successes = [bool(m["is_success"]) for m in members if not pd.isna(m["is_success"])]
        solved = f": {sum(successes)} of {len(successes)} solved" if successes else ""
        cells = [_cell(row, notes) for row in members]
        out.append({"name": str(index), "about": f"Group {index}{solved}", "cells": cells})
    return out


def _cell(row: Mapping[Any, Any], notes: EpisodeNotes) -> tuple[str, str, str]:
    """Id, classes and words of an episode."""
    is_dropped = kept_word(row["kept"]) == "dropped"
    parts = [ended(row), *(["not trained on"] * is_dropped)]
    parts += [f"label {label}" for label in notes.of(row["attempt"], str(row["id"])).labels]
    about = f"Group {row['group_index']}, sibling {row['sibling_index']}: {', '.join(parts)}"
    css = _CSS[outcome_of(row["is_success"], str(row["stop_reason"]))]
    return str(row["id"]), css + " es-hollow" * is_dropped, visible(about, 300)


def ended(row: Mapping[Any, Any]) -> str:
    """How an episode ended and what it earned: `failed, return 0.2`."""
    outcome = outcome_of(row["is_success"], str(row["stop_reason"]))
    value = row["episode_return"]
    return outcome if pd.isna(value) else f"{outcome}, return {number_words(value)}"


def legend_html(rows: pd.DataFrame) -> str:
    """What the shapes mean and how many episodes have each; a `<div>`."""
    pairs = zip(rows["is_success"], rows["stop_reason"], strict=True)
    counts = Counter(outcome_of(*pair) for pair in pairs)
    parts = [
        f'<span><span class="es-episode {css}"></span> {counts[name]:,} {name}</span>'
        for name, css in _CSS.items()
        if counts[name]
    ]
    kept = rows["kept"].dropna().astype(bool)
    if num_dropped := int((~kept).sum()):
        parts.append(f"<span>hollow: {num_dropped:,} not trained on</span>")
    returns = rows["episode_return"].dropna()
    if len(returns) and not counts.keys() & {SOLVED, FAILED}:
        parts.append(f"<span>mean return {number_words(returns.mean())}</span>")
    if len(rows) > MAX_EPISODES:
        parts.append(f"<span>the first {counted(MAX_EPISODES, 'episode')} are shown</span>")
    return f'<div class="es-key-line">{"".join(parts)}</div>'


def show(content: str, *, label: str, now: str | None, on_pick: Callable[[str], None]) -> None:
    """Draw groups; a click on a cell, or Enter on it, calls `on_pick` with its episode.

    Args:
        content: The groups as JSON.
        now: Id of the episode that is shown.
    """
    key = "replay_strip"

    def take() -> None:
        """What the browser sends may be anything."""
        episode = st.session_state[key].get("episode")
        try:
            parse_trajectory_id(str(episode))
        except ValueError:
            return
        on_pick(str(episode))

    component("strip.js")(
        key=key,
        data=json.dumps({"label": label, "now": now, "groups": content}),
        on_episode_change=take,
    )
