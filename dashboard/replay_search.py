"""Search the text of a run, range of steps by range of steps, up to a limit.

Text and regular expressions are matched by DuckDB, whose RE2 takes linear time on any pattern.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from . import queries, sql_box
from .replay_list import COLUMNS

MAX_HITS = 200
MAX_PARTS = 20
"""Ranges that a search of text is cut into: progress is shown after each."""
_CONDITION_PARTS = 4
"""Of a search that reads no text, which takes much less."""
_LEAST_STEPS = 8
_EXCERPT = 80

TEXT, REGEX, WHERE = "text", "regex", "where"
MODES = (TEXT, REGEX, WHERE)
PARAM_OF = {TEXT: "q", REGEX: "filter", WHERE: "where"}
"""The URL parameter that holds the words of each way to search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What to look for, in steps `first` to `last`."""

    mode: str
    words: str
    first: int
    last: int
    limit: int = MAX_HITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How far a search has come."""

    rows: pd.DataFrame
    """COLUMNS, and for text `turn` and `excerpt`: one row per trajectory, its first hit."""
    done_share: float
    next_step: int
    is_cut: bool
    """The limit was reached before the last step."""


def search(run_id: str, wanted: Search) -> Iterator[Found]:
    """Results so far, after each range of steps; the last one is complete or cut.

    Raises:
        Problem: the pattern is no regular expression, or the condition is no SQL.
    """
    parts = _CONDITION_PARTS if wanted.mode == WHERE else MAX_PARTS
    size = max(-(-(wanted.last - wanted.first + 1) // parts), _LEAST_STEPS)
    rows = pd.DataFrame(columns=[*COLUMNS, "turn", "excerpt"])
    for start in range(wanted.first, wanted.last + 1, size):
        end = min(start + size - 1, wanted.last)
        left = wanted.limit - len(rows)
        part = _part(run_id, wanted, start, end, left + 1)
        is_cut = len(part) > left
        if len(part):
            rows = pd.concat([rows, part.head(left)], ignore_index=True) if len(rows) else part
            rows = rows.head(wanted.limit)
        share = (end - wanted.first + 1) / (wanted.last - wanted.first + 1)
        yield Found(rows=rows, done_share=share, next_step=end + 1, is_cut=is_cut)
        if is_cut:
            return


def _part(run_id: str, wanted: Search, start: int, end: int, limit: int) -> pd.DataFrame:
    columns = ", ".join(f"t.{name}" for name in COLUMNS)
    if wanted.mode == WHERE:
        # A comment in the condition ends with its line; everything is read-only anyway.
        sql = (
            f"SELECT {columns} FROM trajectories t WHERE t.step BETWEEN {start} AND {end} AND (\n"
            f"{wanted.words}\n) ORDER BY t.id LIMIT {limit}"
        )
        answer: pd.DataFrame = sql_box.ask(run_id, sql).table.to_pandas()
        return answer
    hits = _HITS[wanted.mode].format(excerpt=_EXCERPT)
    sql = (
        f"SELECT {columns}, h.turn, h.excerpt FROM ({hits}) h "
        "JOIN trajectories t ON t.id = h.id AND t.attempt = h.attempt "
        "WHERE t.step BETWEEN $2 AND $3 ORDER BY t.id LIMIT $4"
    )
    return queries.table(run_id, sql, (wanted.words, start, end, limit))


_FIRST_HIT = """
SELECT trajectory_id AS id, attempt, min(turn) AS turn, arg_min(excerpt, turn) AS excerpt
FROM (
  SELECT trajectory_id, attempt, turn, {excerpt} AS excerpt
  FROM turns WHERE step BETWEEN $2 AND $3 AND ({matches})
) GROUP BY trajectory_id, attempt
"""
_IS_IN_RESPONSE = "contains(lower(response), lower($1))"
_HITS = {
    TEXT: _FIRST_HIT.replace(
        "{excerpt}",
        f"CASE WHEN {_IS_IN_RESPONSE} THEN substring(response, greatest(1, "
        "instr(lower(response), lower($1)) - 20), {excerpt}) ELSE substring(observation, "
        "greatest(1, instr(lower(observation), lower($1)) - 20), {excerpt}) END",
    ).replace("{matches}", f"{_IS_IN_RESPONSE} OR contains(lower(observation), lower($1))"),
    REGEX: _FIRST_HIT.replace(
        "{excerpt}",
        "substring(CASE WHEN regexp_matches(response, $1) THEN regexp_extract(response, $1) "
        "ELSE regexp_extract(observation, $1) END, 1, {excerpt})",
    ).replace("{matches}", "regexp_matches(response, $1) OR regexp_matches(observation, $1)"),
}
