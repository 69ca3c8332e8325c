"""Which trajectories the replay lists, and in which order: one SELECT over `trajectories`.

The trajectories of a step are asked of that step's rows alone. A search or a condition looks
through the whole run, within the limits of the page SQL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import duckdb
import pandas as pd

from echoscope.store.query.condition import checked_condition
from echoscope.store.reader import RunReader
from echoscope.store.schema import TABLES

from ..data import queries
from ..data import sql as sql_box

MAX_ROWS = 200
"""Trajectories of a search that are listed."""
_MAX_MARKED = 200_000
"""Characters of a text that are looked through for what a search matched."""
COLUMNS = (
    *("id", "step", "split", "tag", "group_index", "sibling_index", "prompt_key"),
    *("episode_return", "advantage", "is_success", "num_turns", "num_sampled_tokens"),
    *("stop_reason", "kept", "drop_reason"),
)
"""Of the table `trajectories`: what the list needs."""
SPLITS: Mapping[str, str] = {
    "train": "Training",
    "import": "Imported",
    "eval": "Evaluation",
    "probe": "Probe",
}
"""Split -> its label, in the order in which the replay prefers them."""
NEVER_TRAINED = ("eval", "probe")
"""Splits that no update ever sees."""
ANY, UNKNOWN = "any", "unknown"
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
OLDEST, NEWEST = "id", "newest"
ORDERS: Mapping[str, tuple[str, str]] = {
    OLDEST: ("As recorded", ""),
    NEWEST: ("Newest first", "-t.step"),
    "worst": ("Worst first", f"{_RETURN} NULLS LAST, -t.num_sampled_tokens"),
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
class Asked:
    """What somebody wants to see listed."""

    step: int
    """Whose trajectories; a search and a condition look through all steps."""
    split: str
    """One at a time: training and evaluation episodes are different distributions."""
    success: str = ANY
    kept: str = ANY
    order: str = OLDEST
    text: str = ""
    """Found in responses and observations, whatever the case."""
    where: str = ""
    """A condition in SQL over `trajectories`, as a person typed it."""

    @property
    def is_search(self) -> bool:
        return bool(self.text or self.where)

    def sql(self) -> str:
        """The SELECT.

        Raises:
            QueryError: `where` is not one condition.
        """
        conditions = [f"t.split = {_literal(self.split)}", SUCCESS[self.success], KEPT[self.kept]]
        if self.where:
            columns = TABLES["trajectories"].column_names
            conditions.append(checked_condition(self.where, columns, "trajectories"))
        order = ", ".join(part for part in (ORDERS[self.order][1], "t.id") if part)
        names = ", ".join(f"t.{name}" for name in COLUMNS)
        source, hits = "FROM trajectories t", ""
        if self.text:
            first_hits = _FIRST_HITS.format(words=_literal(self.text))
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

    asked: Asked
    rows: pd.DataFrame
    """COLUMNS, and of a search for text `turn` and `excerpt`."""
    num: int
    """Trajectories that match; more than rows where the list is cut."""


def listed(run_id: str, asked: Asked) -> Listed:
    """The trajectories that somebody asks for.

    Raises:
        Problem: the condition is none, or the search takes too long.
    """
    with queries.reading(run_id):
        sql = asked.sql()
    if asked.is_search:
        rows: pd.DataFrame = sql_box.ask(run_id, sql).table.to_pandas()
    else:
        rows = _of_step(run_id, asked.step, sql)
    num = int(rows["num"].iloc[0]) if len(rows) else 0
    return Listed(asked=asked, rows=rows.drop(columns="num"), num=num)


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


def success_word(value: object) -> str:
    """solved, failed, or unknown where neither the task nor the file says."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN
    return "solved" if value else "failed"


def kept_word(value: object, split: object = "train") -> str:
    """kept, dropped, never trained on; of our trainer pending until the update has seen it."""
    if split in NEVER_TRAINED:
        return "never trained on"
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN if split == "import" else "pending"
    return "kept" if value else "dropped"


def summary(rows: pd.DataFrame) -> str:
    """`64 trajectories: 41 solved of 64, mean return 0.64, 56 kept of 64`."""
    parts = []
    solved, returns, kept = (rows[n].dropna() for n in ("is_success", "episode_return", "kept"))
    if len(solved):
        parts.append(f"{int(solved.astype(bool).sum())} solved of {len(solved)}")
    if len(returns):
        of = f" of {len(returns)} with a known one" if len(returns) < len(rows) else ""
        parts.append(f"mean return {returns.mean():.3g}{of}")
    elif len(rows):
        parts.append("no return in the data")
    if len(rows) and set(rows["split"]) <= set(NEVER_TRAINED):
        parts.append("never trained on")
    elif len(kept):
        parts.append(f"{int(kept.astype(bool).sum())} kept of {len(kept)}")
    noun = "trajectory" if len(rows) == 1 else "trajectories"
    return f"{len(rows):,} {noun}" + (f": {', '.join(parts)}" if parts else "")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
