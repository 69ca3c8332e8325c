"""Which groups another selection would have kept on a stored run's rollouts.

    >>> from echoscope.store.reader import open_run            # doctest: +SKIP
    >>> reader = open_run("runs/my-run")                       # doctest: +SKIP
    >>> found = simulate(reader, SelectionConfig(strategy="top_p", value=0.5))  # doctest: +SKIP
    >>> found.simulated.signal_frac, found.recorded.signal_frac                # doctest: +SKIP

The rollouts are those the run really made: another selection would have trained another policy,
whose later rollouts nobody knows. So the first steps are what would have happened, the later ones
what this filter makes of this run.

Steps are read one at a time, and of each trajectory a few numbers only: a step of 64 trajectories
takes a few milliseconds, live or finished, and memory does not grow with what they wrote.

Legend: **P** groups, **G** siblings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from echoscope.store.reader import RunReader
from echoscope.store.records import BoolArray, FloatArray64, StopReason
from echoscope.store.steer.settings import live_settings
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.strict_json import finite_or_none
from echoscope.text.user_code import UserCodeError

from ..config import SelectionConfig
from ..judge.advice.luck import luck_words, mean_luck
from ..judge.advice.situation import Situation
from ..read.table import steps_with_groups
from ..selection.filter import GroupArrays, Selection, select_from, tie_key
from ..selection.payoff import Payoff, payoff_of
from ..selection.rules import is_zero

PREFIX = "selection."


class WhatIfError(ValueError):
    """The question cannot be asked of this run; one line with the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Selection settings over a run: from each step on, in order; the first counts before it."""

    changes: tuple[tuple[int, SelectionConfig], ...]
    is_recorded: bool = True
    """Whether the run's configuration says anything about selection."""

    def at(self, step: int) -> SelectionConfig:
        found = self.changes[0][1]
        for first, config in self.changes:
            if first <= step:
                found = config
        return found

    def changed(self, changes: Mapping[str, Any]) -> Settings:
        """The same with `changes` on top at every step (see `apply_changes`)."""
        return Settings(
            changes=tuple((step, apply_changes(one, changes)) for step, one in self.changes),
            is_recorded=self.is_recorded,
        )


def own_settings(reader: RunReader) -> Settings:
    """What the run selected by: its configuration and every live change that was applied.

    Raises:
        WhatIfError: its configuration is not one that this version knows.
    """
    info = reader.info()
    raw = info.config.get("selection")
    present = _validated(raw if isinstance(raw, Mapping) else {})
    found = [(0, present)]
    for step, values in live_settings(reader).below(PREFIX):
        now = apply_changes(present, {PREFIX + name: value for name, value in values.items()})
        if now != found[-1][1]:
            found.append((step, now))
    return Settings(changes=tuple(found), is_recorded=isinstance(raw, Mapping))


def apply_changes(config: SelectionConfig, changes: Mapping[str, Any]) -> SelectionConfig:
    """`config` with dotted keys such as `selection.value` changed: all of them, or none.

    Raises:
        WhatIfError: an unknown key, or a value out of range.
    """
    known = [PREFIX + name for name in SelectionConfig.model_fields]
    for key in changes:
        if key not in known:
            raise WhatIfError(f"{key!r} is no setting of the selection{did_you_mean(key, known)}")
    named = {key.removeprefix(PREFIX): value for key, value in changes.items()}
    return _validated(config.model_dump() | named)


def _validated(values: Mapping[str, Any]) -> SelectionConfig:
    try:
        return SelectionConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            raise WhatIfError(str(first["ctx"]["error"])) from None
        name = PREFIX + ".".join(str(part) for part in first["loc"])
        rule = first["msg"][0].lower() + first["msg"][1:]
        raise WhatIfError(f"{name} is {first['input']!r}, but {rule}") from None


class Drop(StrEnum):
    """Why a group does not train."""

    SOLVED = "solved"
    """No reward spread: every sibling succeeded."""
    HOPELESS = "hopeless"
    """No reward spread: every sibling failed."""
    EQUAL = "equal returns"
    """No reward spread for another reason, or success is not known."""
    ZERO = "metric is zero"
    RANKED = "ranked out"
    """It has signal, and the rule left it out."""
    UNDEFINED = "metric not defined"
    OVERLONG = "reply cut"
    """Every sibling that may train had a reply that was cut at its longest."""
    ALIKE = "equal success"
    """Returns differ, success does not."""
    SURPLUS = "enough groups"
    """`max_groups` groups before it train."""
    FAILED = "cannot train"
    """No sibling has sampled tokens and an environment that worked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one selection keeps, of a step or of many."""

    num_steps: int
    num_empty: int
    """Steps without an update, because nothing was kept."""
    num_groups: int
    num_groups_kept: int
    num_trajectories: int
    num_trajectories_kept: int
    signal: float
    """Sum of the reward std of all groups where it is defined."""
    signal_kept: float
    """... of the kept ones; of a group kept in part, as much as its share of |return - mean|."""
    num_tokens: int
    """Sampled tokens of all trajectories; 0 where none were recorded."""
    num_tokens_kept: int
    drops: Mapping[Drop, int] = field(default_factory=dict)
    """Groups that do not train, by why."""

    @property
    def kept_frac(self) -> float:
        return _share(self.num_groups_kept, self.num_groups)

    @property
    def signal_frac(self) -> float:
        """Share of the reward std that is kept; NaN where there is none."""
        return _share(self.signal_kept, self.signal)

    @property
    def tokens_saved_frac(self) -> float:
        """Share of sampled tokens that the update does not go through; NaN without tokens."""
        return _share(self.num_tokens - self.num_tokens_kept, self.num_tokens)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not defined is null."""
        fractions = {
            "kept_frac": self.kept_frac,
            "signal_frac": self.signal_frac,
            "tokens_saved_frac": self.tokens_saved_frac,
        }
        return {
            "num_steps": self.num_steps,
            "num_empty": self.num_empty,
            "num_groups": self.num_groups,
            "num_groups_kept": self.num_groups_kept,
            "num_trajectories": self.num_trajectories,
            "num_trajectories_kept": self.num_trajectories_kept,
            "num_tokens": self.num_tokens,
            "num_tokens_kept": self.num_tokens_kept,
            **{name: finite_or_none(value) for name, value in fractions.items()},
            "drops": {str(why): count for why, count in self.drops.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIfRow:
    """One step: group by group, and summed up."""

    step: int
    settings: SelectionConfig
    group_index_P: NDArray[np.int64]  # (P,)
    reward_std_P: FloatArray64  # (P,) NaN with fewer than two siblings that can train
    keep_P: BoolArray  # (P,) what the selection would have kept
    kept_P: BoolArray | None  # (P,) what the run kept; None where it did not say
    drop_P: tuple[Drop | None, ...]  # (P,) why not, of the simulated selection
    simulated: Kept
    recorded: Kept | None
    reason: str
    """Why nothing would have been kept, in words; empty otherwise."""

    @property
    def num_changed(self) -> int:
        """Groups that the run trained on and the selection drops, or the other way round."""
        return 0 if self.kept_P is None else int((self.keep_P != self.kept_P).sum())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class WhatIf:
    """All steps asked for, and their totals."""

    rows: tuple[WhatIfRow, ...]
    simulated: Kept
    recorded: Kept | None
    """Of the steps where the run said what it kept; None if it never did."""
    payoff: Payoff
    notes: tuple[str, ...] = ()

    @property
    def num_changed(self) -> int:
        return sum(row.num_changed for row in self.rows)


def total(parts: Sequence[Kept]) -> Kept:
    drops: Counter[Drop] = Counter()
    for part in parts:
        drops.update(part.drops)
    return Kept(
        num_steps=sum(part.num_steps for part in parts),
        num_empty=sum(part.num_empty for part in parts),
        num_groups=sum(part.num_groups for part in parts),
        num_groups_kept=sum(part.num_groups_kept for part in parts),
        num_trajectories=sum(part.num_trajectories for part in parts),
        num_trajectories_kept=sum(part.num_trajectories_kept for part in parts),
        signal=sum(part.signal for part in parts),
        signal_kept=sum(part.signal_kept for part in parts),
        num_tokens=sum(part.num_tokens for part in parts),
        num_tokens_kept=sum(part.num_tokens_kept for part in parts),
        drops={why: drops[why] for why in Drop if drops[why]},
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


SPLITS = ("train", "import")
_FAILED = frozenset(reason.value for reason in StopReason if reason.is_failure)
_COLUMNS = [
    "id",
    "attempt",
    "split",
    "group_index",
    "sibling_index",
    "tag",
    "env_seed",
    "noise_seed",
    "episode_return",
    "is_success",
    "stop_reason",
    "num_turns",
    "num_sampled_tokens",
    "kept",
]


def simulate(
    reader: RunReader,
    settings: SelectionConfig | Settings | None = None,
    steps: Iterable[int] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Select again on stored rollouts.

    Args:
        settings: what to select by; None for the run's own, which gives what it kept.
        steps: which; all finished ones if None. One step takes a few milliseconds.
        progress: called with (done, of) after each step.

    Raises:
        WhatIfError: the run has no trajectories at any of the steps, or a rule of its own chose its
            groups: what a stored run names is never imported.
        StoreError: it cannot be read.
    """
    own = own_settings(reader)
    if settings is None:
        settings = own
    elif isinstance(settings, SelectionConfig):
        settings = Settings(changes=((0, settings),))
    wanted = list(steps_with_groups(reader) if steps is None else steps)
    rows = []
    for done, step in enumerate(wanted):
        row = _row(reader, step, settings.at(step), own.at(step))
        if row is not None:
            rows.append(row)
        if progress:
            progress(done + 1, len(wanted))
    if not rows:
        where = f" at step {wanted[0]}" if len(wanted) == 1 else ""
        raise WhatIfError(f"{reader.run_id} has no training trajectories{where}")
    recorded = [row.recorded for row in rows if row.recorded is not None]
    return WhatIf(
        rows=tuple(rows),
        simulated=total([row.simulated for row in rows]),
        recorded=total(recorded) if recorded else None,
        payoff=payoff_of(np.concatenate([row.reward_std_P for row in rows]), luck=_luck(reader)),
        notes=tuple(_notes(rows, settings, own)),
    )


def _luck(reader: RunReader) -> str:
    """What shows that randomness decides the reward of a run, as its verdict says it."""
    luck = mean_luck(reader.metrics("reward/luck_frac")[1].tolist())
    return luck_words(luck, Situation(config=reader.info().config).tasks)


def _row(
    reader: RunReader, step: int, config: SelectionConfig, own: SelectionConfig
) -> WhatIfRow | None:
    listed = _listed(reader, step)
    if not listed:
        return None
    groups = _grouped(listed)
    reads_entropies = config.metric == "entropy" or config.strategy == "custom"
    cut_ids = _cut_ids(reader, step) if "drop" in (config.overlong, own.overlong) else frozenset()
    entropies = _entropies(reader, step) if reads_entropies else {}
    arrays = _arrays(groups, entropies, cut_ids)
    try:
        selection = select_from(arrays, config)
    except UserCodeError as error:
        raise WhatIfError(
            f"{error}; whatif runs a rule only if you name it yourself, with --set "
            f"selection.function={config.function}"
        ) from error
    kept_PG = _recorded(groups, arrays)
    recorded = None
    if kept_PG is not None:
        # Only for why the run dropped what it dropped: what it kept, it wrote down itself.
        if own.strategy == "custom":
            own = own.model_copy(update={"strategy": "none"})
        if own.metric == "entropy" and config.metric != "entropy":
            arrays = _arrays(groups, _entropies(reader, step), cut_ids)
        recorded = _kept(arrays, select_from(arrays, own), kept_PG)
    return WhatIfRow(
        step=step,
        settings=config,
        group_index_P=np.array([group[0]["group_index"] for group in groups], dtype=np.int64),
        reward_std_P=selection.reward_std_P,
        keep_P=selection.keep_P,
        kept_P=None if kept_PG is None else np.asarray(kept_PG.any(axis=1)),
        drop_P=_drops(selection, selection.keep_P),
        simulated=_kept(arrays, selection, selection.keep_PG),
        recorded=recorded,
        reason=selection.reason,
    )


def _listed(reader: RunReader, step: int) -> list[dict[str, Any]]:
    """The rows of a step that selection saw; of several attempts the latest."""
    rows = reader.listing(step).select(_COLUMNS).to_pylist()
    latest: dict[str, dict[str, Any]] = {}
    for row in rows:
        if row["split"] in SPLITS and row["attempt"] >= latest.get(row["id"], row)["attempt"]:
            latest[row["id"]] = row
    return list(latest.values())


def _grouped(rows: Sequence[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    groups: dict[int, list[dict[str, Any]]] = {}
    for row in sorted(rows, key=lambda r: (r["group_index"], r["sibling_index"], r["id"])):
        groups.setdefault(row["group_index"], []).append(row)
    return list(groups.values())


def _arrays(
    groups: Sequence[Sequence[dict[str, Any]]],
    entropies: dict[str, float],
    cut_ids: Collection[str],
) -> GroupArrays:
    shape = (len(groups), max(len(group) for group in groups))
    # Text that was imported without token ids can be compared all the same.
    has_tokens = any(row["num_sampled_tokens"] for group in groups for row in group)

    def can_train(row: dict[str, Any]) -> bool:
        wrote = row["num_sampled_tokens"] > 0 if has_tokens else row["num_turns"] > 0
        return wrote and row["stop_reason"] not in _FAILED

    def table(value: Callable[[dict[str, Any]], float], fill: float) -> FloatArray64:
        out = np.full(shape, fill)
        for p, group in enumerate(groups):
            out[p, : len(group)] = [value(row) for row in group]
        return out

    return GroupArrays(
        returns_PG=table(
            lambda row: np.nan if row["episode_return"] is None else row["episode_return"], 0.0
        ),
        success_PG=table(
            lambda row: np.nan if row["is_success"] is None else float(row["is_success"]), np.nan
        ),
        trainable_PG=table(lambda row: float(can_train(row)), 0.0) > 0,
        lengths_PG=table(lambda row: row["num_sampled_tokens"], 0.0),
        entropies_PG=table(lambda row: entropies.get(row["id"], np.nan), np.nan),
        overlong_PG=table(lambda row: float(row["id"] in cut_ids), 0.0) > 0,
        ties_PG=_ties(groups, shape),
        tags_P=tuple(group[0]["tag"] for group in groups),
    )


def _ties(groups: Sequence[Sequence[dict[str, Any]]], shape: tuple[int, int]) -> NDArray[np.uint64]:
    out = np.zeros(shape, dtype=np.uint64)
    names = ("env_seed", "noise_seed", "group_index", "sibling_index")
    for p, group in enumerate(groups):
        for g, row in enumerate(group):
            out[p, g] = tie_key(*(row[name] for name in names))
    return out


def _cut_ids(reader: RunReader, step: int) -> frozenset[str]:
    """Trajectories with a reply that was cut at its longest."""
    rows = reader.sql(
        "SELECT DISTINCT trajectory_id FROM turns WHERE step = $1 "
        "AND finish_reason IN ('length', 'repetition')",
        [step],
    )
    return frozenset(rows.column("trajectory_id").to_pylist())


def _entropies(reader: RunReader, step: int) -> dict[str, float]:
    """Mean recorded entropy of each trajectory's sampled tokens, as `selection.mean_entropy`."""
    found = reader.sql(
        "SELECT trajectory_id, entropies, len(response_tokens) AS size FROM tokens "
        "WHERE step = $1 AND len(response_tokens) > 0 ORDER BY trajectory_id, turn",
        [step],
    )
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    columns = (found.column(name) for name in ("trajectory_id", "entropies", "size"))
    for key, values, size in zip(*columns, strict=True):
        array = None if not values.is_valid else values.values.to_numpy(zero_copy_only=False)
        total = np.nan if array is None else float(array.sum(dtype=np.float64))
        totals[key.as_py()] = totals.get(key.as_py(), 0.0) + total
        counts[key.as_py()] = counts.get(key.as_py(), 0) + size.as_py()
    return {key: total / counts[key] for key, total in totals.items()}


def _recorded(groups: Sequence[Sequence[dict[str, Any]]], arrays: GroupArrays) -> BoolArray | None:
    """(P, G) what the run trained on; None if it did not say of every trajectory."""
    out = np.zeros(arrays.trainable_PG.shape, dtype=np.bool_)
    for p, group in enumerate(groups):
        for g, row in enumerate(group):
            if row["kept"] is None:
                return None
            out[p, g] = row["kept"]
    return out


def _drops(selection: Selection, keep_P: BoolArray) -> tuple[Drop | None, ...]:
    return tuple(None if keep_P[p] else _why_dropped(selection, p) for p in range(len(keep_P)))


def _why_dropped(selection: Selection, p: int) -> Drop:
    if not selection.trainable_PG[p].any():
        return Drop.FAILED
    if selection.surplus_P[p]:
        return Drop.SURPLUS
    if selection.overlong_PG[p][selection.trainable_PG[p]].all():
        return Drop.OVERLONG
    value, is_spread = selection.values_P[p], selection.config.metric == "reward_std"
    if (is_spread or not selection.mixed_P[p]) and selection.reward_std_P[p] == 0:
        if selection.solved_P[p]:
            return Drop.SOLVED
        return Drop.HOPELESS if selection.hopeless_P[p] else Drop.EQUAL
    if not selection.mixed_P[p]:
        return Drop.ALIKE
    if not np.isfinite(value):
        return Drop.UNDEFINED
    is_left_out = is_zero(value) and not selection.config.include_zero
    return Drop.ZERO if is_left_out else Drop.RANKED


def _kept(arrays: GroupArrays, selection: Selection, keep_PG: BoolArray) -> Kept:
    keep_P = np.asarray(keep_PG.any(axis=1))
    std_P = np.nan_to_num(selection.reward_std_P, nan=0.0)
    drops = Counter(why for why in _drops(selection, keep_P) if why is not None)
    return Kept(
        num_steps=1,
        num_empty=int(not keep_PG.any()),
        num_groups=len(keep_P),
        num_groups_kept=int(keep_P.sum()),
        num_trajectories=int(arrays.trainable_PG.sum()),
        num_trajectories_kept=int(keep_PG.sum()),
        signal=float(std_P.sum()),
        signal_kept=float((std_P * _share_kept(arrays, keep_PG)).sum()),
        num_tokens=int(arrays.lengths_PG.sum()),
        num_tokens_kept=int(arrays.lengths_PG[keep_PG].sum()),
        drops={why: drops[why] for why in Drop if drops[why]},
    )


def _share_kept(arrays: GroupArrays, keep_PG: BoolArray) -> FloatArray64:
    """(P,) share of |return - mean| that the kept siblings of each group hold."""
    good_PG = arrays.trainable_PG
    count_P = np.maximum(good_PG.sum(axis=1), 1)
    mean_P = np.where(good_PG, arrays.returns_PG, 0.0).sum(axis=1) / count_P
    distance_PG = np.where(good_PG, np.abs(arrays.returns_PG - mean_P[:, None]), 0.0)
    total_P = distance_PG.sum(axis=1)
    kept_P = np.where(keep_PG, distance_PG, 0.0).sum(axis=1)
    return np.asarray(np.divide(kept_P, total_P, out=np.zeros_like(kept_P), where=total_P > 0))


def _notes(rows: Sequence[WhatIfRow], settings: Settings, own: Settings) -> list[str]:
    notes = []
    if all(row.settings.strategy == "none" for row in rows):
        notes.append(
            "selection.strategy is none, which keeps all that can train: add "
            "--set selection.strategy=top_p to select"
        )
    num_silent = sum(row.recorded is None for row in rows)
    if num_silent:
        notes.append(f"{num_silent} of {len(rows)} steps do not say what was kept")
    if not own.is_recorded:
        notes.append("the run's configuration says nothing about selection; defaults were taken")
    if not any(row.simulated.num_tokens for row in rows):
        notes.append("no token counts are stored, so what is saved is not known")
    later = [str(first) for first, _ in settings.changes if first > rows[0].step]
    if later:
        notes.append(f"selection was changed while the run was going, at step {', '.join(later)}")
    return notes
