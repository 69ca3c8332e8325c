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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.store.reader import RunReader
from echoscope.store.records import StopReason

from ..config import SelectionConfig
from ..selection.filter import BoolArray, FloatArray64, GroupArrays, Selection, select_from, tie_key
from ..selection.payoff import payoff_of
from ..selection.rules import is_zero
from .stored_steps import steps_with_groups
from .whatif_record import Drop, Kept, WhatIf, WhatIfRow, total
from .whatif_settings import Settings, WhatIfError, own_settings

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
        WhatIfError: the run has no trajectories at any of the steps.
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
        payoff=payoff_of(np.concatenate([row.reward_std_P for row in rows])),
        notes=tuple(_notes(rows, settings, own)),
    )


def _row(
    reader: RunReader, step: int, config: SelectionConfig, own: SelectionConfig
) -> WhatIfRow | None:
    listed = _listed(reader, step)
    if not listed:
        return None
    groups = _grouped(listed)
    arrays = _arrays(groups, _entropies(reader, step) if config.metric == "entropy" else {})
    selection = select_from(arrays, config)
    kept_PG = _recorded(groups, arrays)
    recorded = None
    if kept_PG is not None:
        # Only for why the run dropped what it dropped: what it kept, it wrote down itself.
        if own.metric == "entropy" and config.metric != "entropy":
            arrays = _arrays(groups, _entropies(reader, step))
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


def _arrays(groups: Sequence[Sequence[dict[str, Any]]], entropies: dict[str, float]) -> GroupArrays:
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
        returns_PG=table(lambda row: row["episode_return"], 0.0),
        success_PG=table(
            lambda row: np.nan if row["is_success"] is None else float(row["is_success"]), np.nan
        ),
        trainable_PG=table(lambda row: float(can_train(row)), 0.0) > 0,
        lengths_PG=table(lambda row: row["num_sampled_tokens"], 0.0),
        entropies_PG=table(lambda row: entropies.get(row["id"], np.nan), np.nan),
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
    value, is_spread = selection.values_P[p], selection.config.metric == "reward_std"
    if is_spread and selection.reward_std_P[p] == 0:
        if selection.solved_P[p]:
            return Drop.SOLVED
        return Drop.HOPELESS if selection.hopeless_P[p] else Drop.EQUAL
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
