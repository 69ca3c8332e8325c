"""Which groups another selection would have kept on a stored run's rollouts.

    >>> from echoscope.store.reader import open_run            # doctest: +SKIP
    >>> reader = open_run("runs/my-run")                       # doctest: +SKIP
    >>> found = simulate(reader, {"selection.strategy": "top_p"})              # doctest: +SKIP
    >>> found.simulated.signal_frac, found.recorded.signal_frac                # doctest: +SKIP

The rollouts are those the run really made: another selection would have trained another policy,
whose later rollouts nobody knows. So the first steps are what would have happened, the later ones
what this filter makes of this run.

Steps are read one at a time, and of each trajectory a few numbers only, so memory does not grow
with what they wrote.

Legend: **P** groups, **G** siblings.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from echoscope.store.query.metric_keys import LUCK_FRAC
from echoscope.store.reader import RunReader
from echoscope.store.records import StopReason
from echoscope.store.steer.settings import live_settings
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.strict_json import finite_or_none, json_value
from echoscope.text.user_code import UserCodeError

from ..config import SelectionConfig
from ..judge.advice.luck import luck_words, moving_average
from ..judge.advice.situation import Situation
from ..read.table import steps_with_groups
from ..selection.filter import GroupArrays, Selection, select_from, tie_key
from ..selection.payoff import Payoff, payoff_of
from .setting_errors import SettingError, checked

PREFIX = "selection."


class WhatIfError(ValueError):
    """The question cannot be asked of this run; one line with the way out."""


def apply_changes(values: Mapping[str, Any], changes: Mapping[str, Any]) -> SelectionConfig:
    """Settings of the selection with dotted keys such as `selection.value` changed.

    Raises:
        WhatIfError: an unknown key, or a value out of range.
    """
    names = [PREFIX + name for name in SelectionConfig.model_fields]
    for key in changes:
        if key not in names:
            raise WhatIfError(f"{key!r} is no setting of the selection{did_you_mean(key, names)}")
    changed = {key.removeprefix(PREFIX): value for key, value in changes.items()}
    try:
        return checked(SelectionConfig, {**values, **changed}, ("selection",))
    except SettingError as error:
        raise WhatIfError(str(error)) from None


def own_settings(reader: RunReader) -> Callable[[int], dict[str, Any]]:
    """What the run selected by at a step: its configuration and the live changes until then."""
    configured = reader.info().config.get("selection")
    values = dict(configured) if isinstance(configured, Mapping) else {}
    live = live_settings(reader)

    def at_step(step: int) -> dict[str, Any]:
        items = live.at(step).items()
        return values | {k.removeprefix(PREFIX): v for k, v in items if k.startswith(PREFIX)}

    return at_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What one selection keeps, of a step or of many."""

    num_steps: int
    num_empty: int
    """Steps without an update, because nothing was kept."""
    num_groups: int
    num_groups_kept: int
    signal: float
    """Sum of the reward std of all groups where it is defined."""
    signal_kept: float
    num_tokens: int
    """Sampled tokens of all trajectories; 0 where none were recorded."""
    num_tokens_kept: int
    drops: Counter[str]
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
        names = ("kept_frac", "signal_frac", "tokens_saved_frac")
        plain: dict[str, Any] = json_value(self)
        return plain | {name: finite_or_none(getattr(self, name)) for name in names}


def total(parts: Sequence[Kept]) -> Kept:
    names = [field.name for field in dataclasses.fields(Kept) if field.name != "drops"]
    sums = {name: sum(getattr(part, name) for part in parts) for name in names}
    return Kept(**sums, drops=sum((part.drops for part in parts), Counter()))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfGroup:
    """One group of a step."""

    group_index: int
    reward_std: float
    """NaN with fewer than two siblings that can train."""
    would_keep: bool
    kept: bool | None
    """What the run kept; None where it did not say."""
    why_dropped: str
    """By the simulated selection; empty where it would keep the group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRow:
    """One step: group by group, and summed up."""

    step: int
    settings: SelectionConfig
    groups: tuple[WhatIfGroup, ...]
    simulated: Kept
    recorded: Kept | None
    reason: str
    """Why nothing would have been kept, in words; empty otherwise."""

    @property
    def num_changed(self) -> int:
        """Groups that the run trained on and the selection drops, or the other way round."""
        return sum(g.kept is not None and g.kept != g.would_keep for g in self.groups)

    def to_json(self) -> dict[str, Any]:
        return {
            **json_value(self),
            "settings": json_value(self.settings.model_dump(mode="json")),
            "simulated": self.simulated.to_json(),
            "recorded": None if self.recorded is None else self.recorded.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
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

    def to_json(self) -> dict[str, Any]:
        return {
            "simulated": self.simulated.to_json(),
            "recorded": None if self.recorded is None else self.recorded.to_json(),
            "num_changed": self.num_changed,
            "payoff": json_value(self.payoff),
            "notes": list(self.notes),
            "steps": [row.to_json() for row in self.rows],
        }


def simulate(
    reader: RunReader,
    changes: Mapping[str, Any] | None = None,
    steps: Iterable[int] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Select again on stored rollouts.

    Args:
        changes: dotted settings on top of the run's own; without any, what it kept comes out.
        steps: which; all finished ones if None. One step takes a few milliseconds.
        progress: called with (done, of) after each step.

    Raises:
        WhatIfError: the run has no trajectories at any of the steps, or a rule of its own chose its
            groups: what a stored run names is never imported.
        StoreError: it cannot be read.
    """
    settings_at = own_settings(reader)
    chosen = list(steps_with_groups(reader) if steps is None else steps)
    rows = []
    for done, step in enumerate(chosen, 1):
        run_settings = settings_at(step)
        row = _row(
            reader,
            step,
            apply_changes(run_settings, changes or {}),
            apply_changes(run_settings, {}),
        )
        rows += [] if row is None else [row]
        if progress:
            progress(done, len(chosen))
    if not rows:
        where = f" at step {chosen[0]}" if len(chosen) == 1 else ""
        raise WhatIfError(f"{reader.run_id} has no training trajectories{where}")
    recorded = [row.recorded for row in rows if row.recorded is not None]
    stds = np.array([group.reward_std for row in rows for group in row.groups])
    return WhatIf(
        rows=tuple(rows),
        simulated=total([row.simulated for row in rows]),
        recorded=total(recorded) if recorded else None,
        payoff=payoff_of(stds, luck=_luck(reader)),
        notes=tuple(_notes(rows)),
    )


def _luck(reader: RunReader) -> str:
    """What shows that randomness decides the reward of a run, as its verdict says it."""
    luck = moving_average(reader.metrics(LUCK_FRAC)[1].tolist())
    return luck_words(luck, Situation(config=reader.info().config).tasks)


SPLITS = ("train", "import")
_FAILED = frozenset(reason.value for reason in StopReason if reason.is_failure)
_SEEDS = ("env_seed", "noise_seed", "group_index", "sibling_index")


def _row(
    reader: RunReader, step: int, config: SelectionConfig, run_settings: SelectionConfig
) -> WhatIfRow | None:
    groups = _groups(reader, step)
    if not groups:
        return None
    arrays = _arrays(reader, step, groups, (config, run_settings))
    try:
        selection = select_from(arrays, config)
    except UserCodeError as error:
        raise WhatIfError(
            f"{error}; whatif runs a rule only if you name it yourself, with --set "
            f"selection.function={config.function}"
        ) from error
    is_recorded = all(row["kept"] is not None for group in groups for row in group)
    recorded = None
    if is_recorded:
        # Only for why the run dropped what it dropped: what it kept, it wrote down itself.
        if run_settings.strategy == "custom":
            run_settings = run_settings.model_copy(update={"strategy": "none"})
        by_own = select_from(arrays, run_settings)
        keep_PG = np.zeros_like(by_own.keep_PG)
        for p, group in enumerate(groups):
            keep_PG[p, : len(group)] = [row["kept"] for row in group]
        keep_P = np.asarray(keep_PG.any(axis=1))
        recorded = dataclasses.replace(by_own, keep_PG=keep_PG, keep_P=keep_P)
    return WhatIfRow(
        step=step,
        settings=config,
        groups=tuple(
            WhatIfGroup(
                group_index=group[0]["group_index"],
                reward_std=float(selection.reward_std_P[p]),
                would_keep=bool(selection.keep_P[p]),
                kept=None if recorded is None else bool(recorded.keep_P[p]),
                why_dropped=_why_dropped(selection, p),
            )
            for p, group in enumerate(groups)
        ),
        simulated=_kept(arrays, selection),
        recorded=None if recorded is None else _kept(arrays, recorded),
        reason=selection.reason,
    )


def _groups(reader: RunReader, step: int) -> list[list[dict[str, Any]]]:
    """The rows of a step that selection saw, group by group; of several attempts the latest."""
    latest: dict[str, dict[str, Any]] = {}
    for row in reader.listing(step).to_pylist():
        if row["split"] in SPLITS and row["attempt"] >= latest.get(row["id"], row)["attempt"]:
            latest[row["id"]] = row
    groups: dict[int, list[dict[str, Any]]] = {}
    order = ("group_index", "sibling_index", "id")
    for row in sorted(latest.values(), key=lambda r: tuple(r[name] for name in order)):
        groups.setdefault(row["group_index"], []).append(row)
    return list(groups.values())


def _arrays(
    reader: RunReader,
    step: int,
    groups: Sequence[Sequence[dict[str, Any]]],
    configs: Sequence[SelectionConfig],
) -> GroupArrays:
    """What these selections choose by. Turns and tokens are read only where one of them asks."""
    shape = (len(groups), max(len(group) for group in groups))
    # Text that was imported without token ids can be compared all the same.
    has_tokens = any(row["num_sampled_tokens"] for group in groups for row in group)
    has_overlong = any(config.overlong == "drop" for config in configs)
    has_entropy = any(config.metric == "entropy" for config in configs)
    cut = _cut_ids(reader, step) if has_overlong else set()
    entropies = _entropies(reader, step) if has_entropy else {}

    def table(value: Callable[[dict[str, Any]], Any], fill: Any, dtype: Any = np.float64) -> Any:
        out = np.full(shape, fill, dtype=dtype)
        for p, group in enumerate(groups):
            out[p, : len(group)] = [value(row) for row in group]
        return out

    def can_train(row: dict[str, Any]) -> bool:
        wrote = row["num_sampled_tokens"] > 0 if has_tokens else row["num_turns"] > 0
        return wrote and row["stop_reason"] not in _FAILED

    def number(name: str) -> Callable[[dict[str, Any]], float]:
        return lambda row: np.nan if row[name] is None else float(row[name])

    return GroupArrays(
        returns_PG=table(number("episode_return"), 0.0),
        success_PG=table(number("is_success"), np.nan),
        trainable_PG=table(can_train, False, np.bool_),
        lengths_PG=table(number("num_sampled_tokens"), 0.0),
        entropies_PG=table(lambda row: entropies.get(row["id"], np.nan), np.nan),
        overlong_PG=table(lambda row: row["id"] in cut, False, np.bool_),
        ties_PG=table(lambda row: tie_key(*(row[name] for name in _SEEDS)), 0, np.uint64),
        tags_P=tuple(group[0]["tag"] for group in groups),
    )


def _cut_ids(reader: RunReader, step: int) -> set[str]:
    """Trajectories with a reply that was cut at its longest."""
    rows = reader.sql(
        "SELECT DISTINCT trajectory_id FROM turns WHERE step = $1 AND finish_reason = 'length'",
        [step],
    )
    return set(rows.column("trajectory_id").to_pylist())


def _entropies(reader: RunReader, step: int) -> dict[str, float]:
    """Mean recorded entropy of each trajectory's sampled tokens, where all of them have one."""
    rows = reader.sql(
        "SELECT trajectory_id, sum(list_sum(entropies)) / sum(len(entropies)) AS entropy "
        "FROM tokens WHERE step = $1 AND len(response_tokens) > 0 GROUP BY trajectory_id "
        "HAVING count(*) = count(entropies)",
        [step],
    )
    columns = (rows.column(name).to_pylist() for name in ("trajectory_id", "entropy"))
    return dict(zip(*columns, strict=True))


def _why_dropped(selection: Selection, p: int) -> str:
    if selection.keep_P[p]:
        return ""
    if not (selection.trainable_PG[p] & ~selection.overlong_PG[p]).any():
        return "cannot train"
    is_by_spread = selection.config.metric == "reward_std" or not selection.mixed_P[p]
    if is_by_spread and selection.reward_std_P[p] == 0:
        is_solved, is_hopeless = selection.solved_P[p], selection.hopeless_P[p]
        return "solved" if is_solved else "hopeless" if is_hopeless else "equal returns"
    return "ranked out" if np.isfinite(selection.values_P[p]) else "metric not defined"


def _kept(arrays: GroupArrays, selection: Selection) -> Kept:
    keep_P = selection.keep_P
    std_P = np.nan_to_num(selection.reward_std_P, nan=0.0)
    drops = (_why_dropped(selection, int(p)) for p in np.flatnonzero(~keep_P))
    return Kept(
        num_steps=1,
        num_empty=int(not keep_P.any()),
        num_groups=len(keep_P),
        num_groups_kept=int(keep_P.sum()),
        signal=float(std_P.sum()),
        signal_kept=float(std_P[keep_P].sum()),
        num_tokens=int(arrays.lengths_PG.sum()),
        num_tokens_kept=int(arrays.lengths_PG[selection.keep_PG].sum()),
        drops=Counter(drops),
    )


def _notes(rows: Sequence[WhatIfRow]) -> list[str]:
    notes = []
    if all(row.settings.strategy == "none" for row in rows):
        notes.append(
            "selection.strategy is none, which keeps all that can train: add "
            "--set selection.strategy=top_p to select"
        )
    num_silent = sum(row.recorded is None for row in rows)
    if num_silent:
        notes.append(f"{num_silent} of {len(rows)} steps do not say what was kept")
    if not any(row.simulated.num_tokens for row in rows):
        notes.append("no token counts are stored, so what is saved is not known")
    return notes
