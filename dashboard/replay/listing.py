"""Which trajectories the replay lists, in which order and how: one SELECT over `trajectories`.

The trajectories of a step are asked of that step's rows alone. A search or a condition looks
through the whole run, within the limits of the page SQL.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import duckdb
import pandas as pd
import streamlit as st

from echoscope.store.query.condition import checked_condition
from echoscope.store.query.database import quote
from echoscope.store.reader import RunReader
from echoscope.store.records import parse_trajectory_id
from echoscope.store.schema import TABLES
from echoscope.store.steer.episode_notes import EpisodeKey, EpisodeNotes

from ..data import queries
from ..data import sql as sql_box
from ..escaping import visible
from ..page import ui
from ..words import NEVER_TRAINED, NONE, UNKNOWN, kept_word, number_words, success_word

MAX_ROWS = 200
"""Trajectories of a search that are listed."""
_MAX_MARKED = 200_000
"""Characters of a text that are looked through for what a search matched."""
COLUMNS = (
    *("id", "attempt", "step", "split", "tag", "group_index", "sibling_index", "prompt_key"),
    *("episode_return", "advantage", "is_success", "num_turns", "num_sampled_tokens"),
    *("stop_reason", "kept", "drop_reason"),
)
"""Of the table `trajectories`: what the list needs."""
ANY = "any"
SUCCESS: Mapping[str, str] = {
    ANY: "",
    "solved": "t.is_success",
    "failed": "NOT t.is_success",
    UNKNOWN: "t.is_success IS NULL",
}
"""Choice -> condition."""
KEPT: Mapping[str, str] = {
    ANY: "",
    "kept": "t.kept",
    "dropped": "NOT t.kept",
    "pending": "t.kept IS NULL AND t.split NOT IN ('eval', 'probe', 'import')",
    UNKNOWN: "t.kept IS NULL AND t.split = 'import'",
}
_RETURN = "nullif(t.episode_return, 'nan'::DOUBLE)"
OLDEST, NEWEST, WORST = "id", "newest", "worst"
ORDERS: Mapping[str, tuple[str, str]] = {
    OLDEST: ("As recorded", ""),
    NEWEST: ("Newest first", "-t.step"),
    WORST: (
        "Worst first",
        f"coalesce(t.is_success, false), {_RETURN} NULLS LAST, -t.num_sampled_tokens",
    ),
    "best": ("Best first", f"-{_RETURN} NULLS LAST, t.num_sampled_tokens"),
    "advantage": (
        "Largest advantage first",
        "-abs(nullif(t.advantage, 'nan'::DOUBLE)) NULLS LAST",
    ),
    "longest": ("Longest first", "-t.num_sampled_tokens NULLS LAST"),
}
"""Name -> label and SQL; the id breaks ties."""
_FIRST_HITS = """
SELECT trajectory_id, attempt, min(turn) AS turn, arg_min(excerpt, turn) AS excerpt
FROM (
  SELECT trajectory_id, attempt, turn, substring(text, greatest(1, place - 20), 80) AS excerpt
  FROM (
    SELECT *, CASE WHEN contains(lower(response), lower({words})) THEN response
                   ELSE observation END AS text,
           instr(lower(text), lower({words})) AS place
    FROM turns
  ) WHERE place > 0
) GROUP BY trajectory_id, attempt
"""
"""Of each trajectory the first turn that has the words, and what stands around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListRequest:
    """What somebody wants to see listed."""

    step: int
    """Whose trajectories; a search and a condition look through all steps."""
    split: str
    """One at a time: training and evaluation episodes are different distributions."""
    success: str = ANY
    kept: str = ANY
    order: str = WORST
    text: str = ""
    """Found in responses and observations, whatever the case."""
    where: str = ""
    """A condition in SQL over `trajectories`, as a person typed it."""
    label: str = ""
    labelled: tuple[EpisodeKey, ...] = ()
    """The episodes that have `label`."""

    @property
    def is_search(self) -> bool:
        return bool(self.text or self.where or self.label)

    def sql(self) -> str:
        """The SELECT.

        Raises:
            QueryError: `where` is not one condition.
        """
        conditions = [f"t.split = {quote(self.split)}", SUCCESS[self.success], KEPT[self.kept]]
        if self.where:
            columns = TABLES["trajectories"].column_names
            conditions.append(checked_condition(self.where, columns, "trajectories"))
        if self.label:
            conditions.append(_is_one_of(self.labelled))
        order = ", ".join(part for part in (ORDERS[self.order][1], "t.id") if part)
        names = ", ".join(f"t.{name}" for name in COLUMNS)
        source, hits = "FROM trajectories t", ""
        if self.text:
            first_hits = _FIRST_HITS.format(words=quote(self.text))
            source += f" JOIN ({first_hits}) h ON h.trajectory_id = t.id AND h.attempt = t.attempt"
            hits = ", h.turn, h.excerpt"
        return (
            f"SELECT {names}{hits}, count(*) OVER () AS num {source} "
            f"WHERE {' AND '.join(filter(None, conditions))} ORDER BY {order} "
            f"LIMIT {MAX_ROWS if self.is_search else 1_000_000}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """The answer."""

    asked: ListRequest
    rows: pd.DataFrame
    """COLUMNS, and of a search for text `turn` and `excerpt`."""
    num: int
    """Trajectories that match; more than rows where the list is cut."""


def listed(run_id: str, asked: ListRequest) -> Listed:
    """The trajectories that somebody asks for.

    Raises:
        Problem: the condition is none, or the search takes too long.
    """
    with queries.reading(run_id):
        sql = asked.sql()
    if asked.text or asked.where:
        rows: pd.DataFrame = sql_box.ask(run_id, sql).table.to_pandas()
    elif asked.label:
        rows = queries.table(run_id, sql)
    else:
        rows = _of_step(run_id, asked.step, sql)
    num = int(rows["num"].iloc[0]) if len(rows) else 0
    return Listed(asked=asked, rows=rows.drop(columns="num"), num=num)


def _is_one_of(episodes: Sequence[EpisodeKey]) -> str:
    """A condition that holds for some episodes; their steps save a look into all files."""
    steps = ", ".join(
        str(step) for step in sorted({parse_trajectory_id(key)[1] for _, key in episodes})
    )
    keys = ", ".join(quote(f"{attempt}/{key}") for attempt, key in episodes)
    return f"t.step IN ({steps}) AND t.attempt || '/' || t.id IN ({keys})" if keys else "false"


@queries.kept
def _of_step(run: RunReader, step: int, sql: str) -> pd.DataFrame:
    with duckdb.connect() as connection:
        connection.register("trajectories", run.listing(step))
        frame: pd.DataFrame = connection.execute(sql).df()
    return frame


def hits_in(text: str, phrase: str) -> list[str]:
    """The pieces of `text` that a search for some words matched, to be marked."""
    pattern = re.compile(re.escape(phrase), re.IGNORECASE)
    return sorted(set(pattern.findall(text[:_MAX_MARKED]))) if phrase else []


def summary(rows: pd.DataFrame) -> str:
    """`64 trajectories: 41 solved of 64, mean return 0.64, 56 kept of 64`."""
    parts = []
    solved, returns, kept = (rows[n].dropna() for n in ("is_success", "episode_return", "kept"))
    if len(solved):
        parts.append(f"{int(solved.astype(bool).sum())} solved of {len(solved)}")
    if len(returns):
        of = f" of {len(returns)} with a known one" if len(returns) < len(rows) else ""
        parts.append(f"mean return {number_words(returns.mean())}{of}")
    elif len(rows):
        parts.append("no return in the data")
    if len(rows) and set(rows["split"]) <= set(NEVER_TRAINED):
        parts.append("never trained on")
    elif len(kept):
        parts.append(f"{int(kept.astype(bool).sum())} kept of {len(kept)}")
    noun = "trajectory" if len(rows) == 1 else "trajectories"
    return f"{len(rows):,} {noun}" + (f": {', '.join(parts)}" if parts else "")


_FORMS: Mapping[str, tuple[str, Callable[[float], str]]] = {
    "return": ("episode_return", number_words),
    "advantage": ("advantage", "{:+.2f}".format),
    "turns": ("num_turns", "{:.0f}".format),
    "tokens": ("num_sampled_tokens", "{:,.0f}".format),
}
"""Columns of numbers: where each comes from, and how a number is written."""
EPISODE, EPISODE_OF_SEARCH = "group, sibling", "step, group, sibling"
"""Names of the first column: which episode."""
_COLUMNS = (
    *("success", "return", "match", "labels", "advantage", "update", "turns", "tokens"),
    *("ended by", "dropped because", "tag"),
)
_TELLING = ("update", "ended by", "dropped because", "tag")
"""Columns that have room only where they tell episodes apart."""
_SHOWN = "background-color: rgba(128, 128, 128, 0.25)"


def pick_table(
    cells: pd.DataFrame,
    ids: Sequence[str],
    *,
    key: str,
    picked: str | None,
    on_pick: Callable[[str], None],
) -> None:
    """Draw the trajectories of which one is shown; a click on another one calls `on_pick`."""
    columns: dict[str, Any] = {
        name: st.column_config.TextColumn(name, alignment="right" if name in _FORMS else "left")
        for name in cells.columns
    }
    first = str(cells.columns[0])
    columns[first] = ui.button_column(
        first, f"{key}:open", ids, on_pick, alignment="left", pinned=True
    )
    st.dataframe(
        cells.style.apply(
            lambda row: [_SHOWN if ids[row.name] == picked else ""] * len(row), axis="columns"
        ),
        hide_index=True,
        height="content",
        column_config=columns,
        placeholder=NONE,
        key=key,
        alt="Trajectories",
    )


def list_cells(rows: pd.DataFrame, notes: EpisodeNotes, *, is_search: bool) -> pd.DataFrame:
    """One row a trajectory, all cells text; what is unseen in texts of a file is made visible.

    What is known of no trajectory has no column, nor has a reason or a tag that all of them share.
    """
    first = EPISODE_OF_SEARCH if is_search else EPISODE
    columns = [first, *_COLUMNS]
    cells = pd.DataFrame(
        [_cells(row, notes, first) for row in rows.to_dict("records")], columns=columns
    )
    empty = [name for name in _COLUMNS if cells[name].isin([None, "", UNKNOWN]).all()]
    shared = [name for name in _TELLING if cells[name].nunique(dropna=False) == 1]
    return cells.drop(columns=list({*empty, *shared}))


def _cells(row: Mapping[Any, Any], notes: EpisodeNotes, first: str) -> dict[str, str | None]:
    step = f"{row['step']}, " if first == EPISODE_OF_SEARCH else ""
    labels = notes.of(row["attempt"], str(row["id"])).labels
    dropped, excerpt = row["drop_reason"], row.get("excerpt")
    numbers = {name: _number(row[column], form) for name, (column, form) in _FORMS.items()}
    if not row["num_sampled_tokens"]:  # a reply has a token at least: 0 means that nobody counted
        numbers["tokens"] = None
    return numbers | {
        first: f"{step}{row['group_index']}, {row['sibling_index']}",
        "labels": visible(", ".join(labels), 120),
        "success": success_word(row["is_success"]),
        "match": visible(excerpt, 120) if isinstance(excerpt, str) else None,
        "update": kept_word(row["kept"], row["split"]),
        "ended by": visible(str(row["stop_reason"]), 60),
        "dropped because": visible(dropped, 200) if isinstance(dropped, str) else None,
        "tag": visible(str(row["tag"]), 80),
    }


def _number(value: Any, form: Callable[[float], str]) -> str | None:
    return None if value is None or pd.isna(value) else form(value)
