"""Which trajectories the replay lists and in which order: tables in, tables out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

COLUMNS = (
    "id",
    "step",
    "split",
    "tag",
    "group_index",
    "sibling_index",
    "prompt_key",
    "episode_return",
    "advantage",
    "is_success",
    "num_turns",
    "num_sampled_tokens",
    "stop_reason",
    "kept",
    "drop_reason",
)
"""Of the table `trajectories`: what the list needs."""
ANY = "any"
SUCCESS = (ANY, "solved", "failed", "undefined")
KEPT = (ANY, "kept", "dropped", "pending")


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters:
    """Which rows stay; `ANY` leaves all."""

    success: str = ANY
    kept: str = ANY
    split: str = ANY
    tag: str = ANY
    stop: str = ANY

    @property
    def is_open(self) -> bool:
        """Nothing is filtered out."""
        return self == Filters()

    def apply(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that match all of it."""
        keep = pd.Series(True, index=rows.index)
        for column, value in (("split", self.split), ("tag", self.tag), ("stop_reason", self.stop)):
            if value != ANY:
                keep &= rows[column] == value
        if self.success != ANY:
            keep &= rows["is_success"].map(success_word) == self.success
        if self.kept != ANY:
            keep &= rows["kept"].map(kept_word) == self.kept
        return rows[keep]


def success_word(value: object) -> str:
    """solved, failed, or undefined where the task does not say."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "undefined"
    return "solved" if value else "failed"


def kept_word(value: object) -> str:
    """kept, dropped, or pending until the update has seen it."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return "pending"
    return "kept" if value else "dropped"


def present(rows: pd.DataFrame, column: str) -> list[str]:
    """The values of a column that occur, sorted, `ANY` first."""
    return [ANY, *sorted({str(value) for value in rows[column].dropna()})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A way to sort the list."""

    label: str
    meaning: str
    sort: Callable[[pd.DataFrame], pd.DataFrame]


def _by(*columns: str, ascending: Sequence[bool]) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def sort(rows: pd.DataFrame) -> pd.DataFrame:
        return rows.sort_values([*columns, "id"], ascending=[*ascending, True], na_position="last")

    return sort


def _typical(rows: pd.DataFrame) -> pd.DataFrame:
    distance = (rows["episode_return"] - rows["episode_return"].median()).abs()
    length = (rows["num_sampled_tokens"] - rows["num_sampled_tokens"].median()).abs()
    ranked = rows.assign(_distance=distance, _length=length)
    return ranked.sort_values(["_distance", "_length", "id"]).drop(columns=["_distance", "_length"])


def _surprising(rows: pd.DataFrame) -> pd.DataFrame:
    ranked = rows.assign(_size=rows["advantage"].abs())
    found = ranked.sort_values(["_size", "id"], ascending=[False, True], na_position="last")
    return found.drop(columns="_size")


ORDERS: Mapping[str, Order] = {
    "id": Order(label="As recorded", meaning="group by group", sort=_by(ascending=())),
    "worst": Order(
        label="Worst first",
        meaning="lowest return, then most tokens",
        sort=_by("episode_return", "num_sampled_tokens", ascending=(True, False)),
    ),
    "best": Order(
        label="Best first",
        meaning="highest return, then fewest tokens",
        sort=_by("episode_return", "num_sampled_tokens", ascending=(False, True)),
    ),
    "typical": Order(
        label="Most typical first",
        meaning="return closest to the median of those listed, then length closest to the median",
        sort=_typical,
    ),
    "advantage": Order(
        label="Largest advantage first",
        meaning="largest size of the advantage, whatever its sign: what moved the policy",
        sort=_surprising,
    ),
    "longest": Order(
        label="Longest first",
        meaning="most sampled tokens",
        sort=_by("num_sampled_tokens", ascending=(False,)),
    ),
}
CHANGED = "changed"
"""One more order, which needs another step to compare with."""


def changed_since(rows: pd.DataFrame, earlier: pd.DataFrame) -> pd.DataFrame:
    """The rows whose prompt was sampled at the earlier step too, the largest change first.

    Adds `change`: mean return of the prompt now minus its mean return then.
    """
    now, then = (table.groupby("prompt_key")["episode_return"].mean() for table in (rows, earlier))
    found = rows.assign(change=rows["prompt_key"].map(now - then)).dropna(subset=["change"])
    ranked = found.assign(_size=found["change"].abs())
    return ranked.sort_values(["_size", "id"], ascending=[False, True]).drop(columns="_size")


def summary(rows: pd.DataFrame) -> str:
    """`64 trajectories: 41 solved of 64, mean return 0.64, 56 kept`."""
    count = len(rows)
    parts = []
    solved = rows["is_success"].dropna()
    if len(solved):
        parts.append(f"{int(solved.astype(bool).sum())} solved of {len(solved)}")
    if count:
        parts.append(f"mean return {rows['episode_return'].mean():.3g}")
    kept = rows["kept"].dropna()
    if len(kept):
        parts.append(f"{int(kept.astype(bool).sum())} kept of {len(kept)}")
    noun = "trajectory" if count == 1 else "trajectories"
    return f"{count:,} {noun}" + (f": {', '.join(parts)}" if parts else "")
