"""Which settings of a sweep a metric depends on, and whether runs are enough to tell. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from echoscope.text.amounts import counted

from .groups import MISSING, Settings, in_order

LEAST_RUNS = 18
"""A setting that decides half of the spread between so many runs is found in 7 of 10 sweeps; of 12
runs it is missed more often than found (simulated in tests/dashboard/data/comparing)."""
MAX_SETTINGS = 20
REPEATS = 10
"""Forests over other halves of the runs, each with other shuffled copies."""
FOLDS = 3
TREES = 10
SURE_REPEATS = 0.9
"""Share of the repeats in which a setting must tell more than every shuffled copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """How much of the spread between runs is lost to a forest that is not told some settings."""

    settings: tuple[str, ...]
    """More than one where they always vary together, so that nobody can tell which it is."""
    value: float
    """Rise of the squared error of held-out runs, over the variance between runs; mean."""
    low: float
    high: float
    """The smallest and the largest of the repeats."""
    is_sure: bool
    """Nearly always more than any shuffled copy of the settings."""


def together(settings: Mapping[str, Settings], keys: Sequence[str]) -> list[tuple[str, ...]]:
    """The settings in sets that divide the runs in the same way, in the order of `keys`.

    >>> runs = {"a": {"lr": "1", "warmup": "5"}, "b": {"lr": "2", "warmup": "9"}}
    >>> together(runs, ["lr", "warmup"])
    [('lr', 'warmup')]
    """
    sets: dict[tuple[int, ...], list[str]] = {}
    for key in keys:
        values = [of.get(key, MISSING) for of in settings.values()]
        first_seen = {value: n for n, value in enumerate(dict.fromkeys(values))}
        sets.setdefault(tuple(first_seen[value] for value in values), []).append(key)
    return [tuple(of) for of in sets.values()]


def ranks(values: Sequence[str]) -> list[int]:
    """The place of each value among the distinct ones, numbers by size.

    >>> ranks(["0.1", "1e-05", "none", "0.1"])
    [1, 0, 2, 1]
    """
    places = {value: n for n, value in enumerate(sorted(set(values), key=in_order))}
    return [places[value] for value in values]


def importances(
    settings: Mapping[str, Settings], values: Mapping[str, float], keys: Sequence[str]
) -> list[Importance]:
    """What each setting tells of a metric, the most important one first.

    A random forest predicts runs that it has not seen; a setting matters as far as the error grows
    when its values are shuffled between these runs. Each setting has a shuffled copy in the forest:
    what a copy seems to tell is chance.

    Args:
        settings: run -> setting -> value.
        values: run -> metric; runs without a finite value are left out.
        keys: The settings that vary, at most `MAX_SETTINGS`.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance
    from sklearn.model_selection import KFold

    runs = [run for run, value in values.items() if math.isfinite(value)]
    sets = together({run: settings[run] for run in runs}, keys)
    codes_NK = np.array(
        [ranks([settings[run].get(of[0], MISSING) for run in runs]) for of in sets], np.float64
    ).T
    values_N = np.array([values[run] for run in runs])
    spread = float(values_N.var())
    if not spread or not sets:
        return []
    rises_R2K = np.zeros((REPEATS, 2 * len(sets)))
    for repeat, rises_2K in enumerate(rises_R2K):
        random = np.random.default_rng(repeat)
        table = np.hstack([codes_NK, random.permuted(codes_NK, axis=0)])
        folds = KFold(FOLDS, shuffle=True, random_state=repeat)
        for seen, unseen in folds.split(table):
            forest = RandomForestRegressor(
                TREES, min_samples_leaf=2, random_state=repeat, n_jobs=1
            ).fit(table[seen], values_N[seen])
            permutation = permutation_importance(
                forest,
                table[unseen],
                values_N[unseen],
                scoring="neg_mean_squared_error",
                n_repeats=1,
                random_state=repeat,
            )
            rises_2K += permutation.importances_mean * len(unseen) / len(runs) / spread
    rises_RK, of_copies_RK = np.split(rises_R2K, 2, axis=1)
    is_above_RK = rises_RK > of_copies_RK.max(axis=1, keepdims=True)
    out = [
        Importance(
            settings=of,
            value=float(rises_R.mean()),
            low=float(rises_R.min()),
            high=float(rises_R.max()),
            is_sure=bool(is_above_R.mean() >= SURE_REPEATS),
        )
        for of, rises_R, is_above_R in zip(sets, rises_RK.T, is_above_RK.T, strict=True)
    ]
    return sorted(out, key=lambda each: -each.value)


def why_unknown(num_runs: int, num_settings: int) -> str:
    """Why nothing is said of so few runs or so many settings; empty where it can be."""
    if num_runs < LEAST_RUNS:
        return (
            f"Too few runs to tell which settings matter: {counted(num_runs, 'run')}, "
            f"at least {LEAST_RUNS} are needed."
        )
    if num_settings > MAX_SETTINGS:
        return (
            f"{num_settings} settings differ, so these runs are no sweep: at most {MAX_SETTINGS} "
            "are weighed against each other."
        )
    return ""


def importance_words(ranked: Sequence[Importance]) -> str:
    """Which settings matter, in two sentences. Hostile."""
    sure = [each for each in ranked if each.is_sure]
    unsure = [" with ".join(each.settings) for each in ranked if not each.is_sure]
    if not sure:
        return "No setting tells more about the result than a shuffled copy of it does."
    told = ", ".join(
        f"{' with '.join(each.settings)} by {each.value:.2f} ({each.low:.2f} to {each.high:.2f})"
        for each in sure
    )
    rest = f" These runs do not show whether {' or '.join(unsure)} matters." if unsure else ""
    return (
        "Shuffling a setting makes the prediction worse, in units of the variance between runs, "
        f"over {REPEATS} repeats: {told}.{rest}"
    )
