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
SPLITS: Mapping[str, str] = {
    "train": "Training",
    "import": "Imported",
    "eval": "Evaluation",
    "probe": "Probe",
}
"""Split -> its label, in the order in which the replay prefers them."""
UNKNOWN = "unknown"
NEVER_TRAINED = ("eval", "probe")
"""Splits that no update ever sees."""
SUCCESS = (ANY, "solved", "failed", "unknown")
KEPT = (ANY, "kept", "dropped", "pending", "unknown")


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

    def condition(self) -> str:
        """The same as an SQL condition on the table `trajectories t`.

        >>> Filters(split="eval", success="failed", tag="it's").condition()
        "t.split = 'eval' AND t.tag = 'it''s' AND NOT t.is_success"
        """
        named = (("split", self.split), ("tag", self.tag), ("stop_reason", self.stop))
        parts = [f"t.{column} = {_literal(value)}" for column, value in named if value != ANY]
        parts += [_SUCCESS_CONDITIONS[self.success], _KEPT_CONDITIONS[self.kept]]
        return " AND ".join(part for part in parts if part) or "TRUE"

    def apply(self, rows: pd.DataFrame) -> pd.DataFrame:
        """The rows that match all of it."""
        keep = pd.Series(True, index=rows.index)
        for column, value in (("split", self.split), ("tag", self.tag), ("stop_reason", self.stop)):
            if value != ANY:
                keep &= rows[column] == value
        if self.success != ANY:
            keep &= rows["is_success"].map(success_word) == self.success
        if self.kept != ANY:
            keep &= update_words(rows) == self.kept
        return rows[keep]


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


_SUCCESS_CONDITIONS = {
    ANY: "",
    "solved": "t.is_success",
    "failed": "NOT t.is_success",
    "unknown": "t.is_success IS NULL",
}
_KEPT_CONDITIONS = {
    ANY: "",
    "kept": "t.kept",
    "dropped": "NOT t.kept",
    "pending": "t.kept IS NULL AND t.split NOT IN ('eval', 'probe', 'import')",
    "unknown": "t.kept IS NULL AND t.split = 'import'",
}


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


def update_words(rows: pd.DataFrame) -> pd.Series[str]:
    """`kept_word` of every row."""
    words = [kept_word(*pair) for pair in zip(rows["kept"], rows["split"], strict=True)]
    return pd.Series(words, index=rows.index, dtype=object)


def first_split(present_splits: Sequence[str]) -> str:
    """The split that the replay opens on: training if there is any.

    >>> first_split(["eval", "train"])
    'train'
    """
    return next((split for split in SPLITS if split in present_splits), "train")


def present(rows: pd.DataFrame, column: str) -> list[str]:
    """The values of a column that occur, sorted, `ANY` first."""
    return [ANY, *sorted({str(value) for value in rows[column].dropna()})]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A way to sort the list."""

    label: str
    meaning: str
    sort: Callable[[pd.DataFrame], pd.DataFrame]
    keys: tuple[str, ...]
    """The same order as SQL over `trajectories t`: the row with the smaller value comes first.

    Rows without a value come last, and the id breaks ties. `typical` has {return_median} and
    {tokens_median} to fill in.
    """


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


OLDEST, NEWEST = "id", "newest"
RETURN = "nullif(t.episode_return, 'nan'::DOUBLE)"
ORDERS: Mapping[str, Order] = {
    OLDEST: Order(
        label="As recorded",
        meaning="oldest step first, group by group",
        sort=_by(ascending=()),
        keys=(),
    ),
    NEWEST: Order(
        label="Newest first",
        meaning="newest step first, then group by group",
        sort=_by("step", ascending=(False,)),
        keys=("-t.step",),
    ),
    "worst": Order(
        label="Worst first",
        meaning="lowest return, then most tokens",
        sort=_by("episode_return", "num_sampled_tokens", ascending=(True, False)),
        keys=(RETURN, "-t.num_sampled_tokens"),
    ),
    "best": Order(
        label="Best first",
        meaning="highest return, then fewest tokens",
        sort=_by("episode_return", "num_sampled_tokens", ascending=(False, True)),
        keys=(f"-{RETURN}", "t.num_sampled_tokens"),
    ),
    "typical": Order(
        label="Most typical first",
        meaning="return closest to the median of those listed, then length closest to the median",
        sort=_typical,
        keys=(
            f"abs({RETURN} - {{return_median}})",
            "abs(t.num_sampled_tokens - {tokens_median})",
        ),
    ),
    "advantage": Order(
        label="Largest advantage first",
        meaning="largest size of the advantage, whatever its sign: what moved the policy",
        sort=_surprising,
        keys=("-abs(nullif(t.advantage, 'nan'::DOUBLE))",),
    ),
    "longest": Order(
        label="Longest first",
        meaning="most sampled tokens",
        sort=_by("num_sampled_tokens", ascending=(False,)),
        keys=("-t.num_sampled_tokens",),
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
    """`64 trajectories: 41 solved of 64, mean return 0.64, 56 kept of 64`.

    Of one split: training and evaluation are different distributions, so nobody adds them up.
    """
    count = len(rows)
    parts = []
    solved = rows["is_success"].dropna()
    if len(solved):
        parts.append(f"{int(solved.astype(bool).sum())} solved of {len(solved)}")
    returns = rows["episode_return"].dropna()
    if len(returns):
        of = f" of {len(returns)} with a known one" if len(returns) < count else ""
        parts.append(f"mean return {returns.mean():.3g}{of}")
    elif count:
        parts.append("no return in the data")
    kept = rows["kept"].dropna()
    if count and set(rows["split"]) <= set(NEVER_TRAINED):
        parts.append("never trained on")
    elif len(kept):
        parts.append(f"{int(kept.astype(bool).sum())} kept of {len(kept)}")
    noun = "trajectory" if count == 1 else "trajectories"
    return f"{count:,} {noun}" + (f": {', '.join(parts)}" if parts else "")
