"""Search the text of a run, range of steps by range of steps, up to a limit.

Text and regular expressions are matched by DuckDB, whose RE2 takes linear time on any pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pandas as pd

from ..data import queries
from ..data import sql as sql_box
from .list import COLUMNS, NEWEST, OLDEST, ORDERS, RETURN, Filters

MAX_HITS = 200
MAX_MARKED = 200_000
"""Characters of a text that are looked through for what a search matched."""
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
    """What to look for in steps `first` to `last`, and which of the matches to show."""

    mode: str
    words: str
    first: int
    last: int
    filters: Filters = field(default_factory=Filters)
    order: str = OLDEST
    """A key of ORDERS. The rows shown are the first `limit` of all matches in this order."""
    limit: int = MAX_HITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """How far a search has come."""

    rows: pd.DataFrame
    """COLUMNS, and for text `turn` and `excerpt`: one row per trajectory, its first hit."""
    done_share: float
    searched: tuple[int, int]
    """First and last step that were searched so far."""
    num_matches: int
    """Trajectories that match in the steps searched so far."""
    is_cut: bool
    """There are more matches than rows."""


def search(run_id: str, wanted: Search) -> Iterator[Found]:
    """Results so far, after each range of steps; the last one is complete or cut.

    By age (`id`, `newest`), the search ends as soon as it has enough. In any other order it looks
    at every match before it says which come first.

    Raises:
        Problem: the pattern is no regular expression, or the condition is no SQL.
    """
    keys, share_before = ORDERS[wanted.order].keys, 0.0
    if any("{return_median}" in key for key in keys):
        medians = _medians(run_id, wanted)
        keys, share_before = tuple(key.format(**medians) for key in keys), 0.5
    places = [f"_{n}" for n in range(len(keys))]
    extra = [] if wanted.mode == WHERE else ["turn", "excerpt"]
    rows = pd.DataFrame(columns=[*COLUMNS, *extra, *places])
    num_matches = num_steps = 0
    for start, end in _ranges(wanted):
        part, num_found = _part(run_id, wanted, keys, start, end)
        num_matches += num_found
        if len(part):
            both = part if rows.empty else pd.concat([rows, part], ignore_index=True)
            rows = both.sort_values([*places, "id"], na_position="last", ignore_index=True)
            rows = rows.head(wanted.limit)
        num_steps += end - start + 1
        share = num_steps / (wanted.last - wanted.first + 1)
        is_cut = num_matches > wanted.limit
        yield Found(
            rows=rows.drop(columns=places),
            done_share=share_before + share * (1 - share_before),
            searched=(start, wanted.last) if wanted.order == NEWEST else (wanted.first, end),
            num_matches=num_matches,
            is_cut=is_cut,
        )
        if is_cut and wanted.order in (OLDEST, NEWEST):
            return


def _ranges(wanted: Search) -> list[tuple[int, int]]:
    """The steps in parts; the newest part first where the newest matches are wanted."""
    parts = _CONDITION_PARTS if wanted.mode == WHERE else MAX_PARTS
    size = max(-(-(wanted.last - wanted.first + 1) // parts), _LEAST_STEPS)
    ranges = [
        (start, min(start + size - 1, wanted.last))
        for start in range(wanted.first, wanted.last + 1, size)
    ]
    return ranges[::-1] if wanted.order == NEWEST else ranges


def _medians(run_id: str, wanted: Search) -> dict[str, float]:
    """Median return and length of all matches."""
    columns = f"median({RETURN}) AS return_median, median(t.num_sampled_tokens) AS tokens_median"
    row = _select(run_id, wanted, columns, wanted.first, wanted.last).iloc[0]
    return {str(name): 0.0 if pd.isna(value) else float(value) for name, value in row.items()}


def _part(
    run_id: str, wanted: Search, keys: Sequence[str], start: int, end: int
) -> tuple[pd.DataFrame, int]:
    """The first `limit` matches of some steps, and how many there are."""
    names = [f"t.{name}" for name in COLUMNS]
    if wanted.mode != WHERE:
        names += ["h.turn", "h.excerpt"]
    names += [f"{key} AS _{n}" for n, key in enumerate(keys)]
    names.append("count(*) OVER () AS num_found")
    order = ", ".join([*(f"_{n} NULLS LAST" for n in range(len(keys))), "t.id"])
    ending = f"ORDER BY {order} LIMIT {wanted.limit}"
    rows = _select(run_id, wanted, ", ".join(names), start, end, ending)
    num_found = int(rows["num_found"].iloc[0]) if len(rows) else 0
    return rows.drop(columns="num_found"), num_found


def _select(
    run_id: str, wanted: Search, columns: str, start: int, end: int, ending: str = ""
) -> pd.DataFrame:
    """Some columns of the matches within some steps."""
    within = f"t.step BETWEEN {start} AND {end} AND {wanted.filters.condition()}"
    if wanted.mode == WHERE:
        # The line break ends a comment at the end of the condition.
        sql = (
            f"SELECT {columns} FROM trajectories t WHERE {within} AND (\n{wanted.words}\n) {ending}"
        )
        answer: pd.DataFrame = sql_box.ask(run_id, sql).table.to_pandas()
        return answer
    hits = _HITS[wanted.mode].format(excerpt=_EXCERPT)
    sql = (
        f"SELECT {columns} FROM ({hits}) h "
        f"JOIN trajectories t ON t.id = h.id AND t.attempt = h.attempt WHERE {within} {ending}"
    )
    return queries.table(run_id, sql, (wanted.words, start, end))


def hits_in(run_id: str, mode: str, words: str, text: str) -> list[str]:
    """The pieces of `text` that a search matched, to be marked; none for an SQL condition.

    The database matches them, as it did for the search: its expressions take linear time.
    """
    if mode == WHERE or not words:
        return []
    pattern = f"(?i){re.escape(words)}" if mode == TEXT else words
    sql = "SELECT regexp_extract_all($1, $2) AS hits"
    found = queries.table(run_id, sql, (text[:MAX_MARKED], pattern))["hits"][0]
    return sorted({str(hit) for hit in found if hit}, key=len, reverse=True)[:MAX_HITS]


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
