"""Whether randomness decides the reward: one answer for causes, advice and the filter's worth."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from echoscope.text.amounts import percent

LUCK_SHARE = 0.3
"""Share of the reward differences that actions do not explain from which randomness decides."""
LUCK_PARAMS = ("slip",)
"""Parameters of environments that make the world ignore an action."""
LEAST_PARAM = 0.5
"""From which such a parameter shows it, where the share was not measured."""


def luck_words(luck: float, tasks: Sequence[Mapping[str, Any]] = ()) -> str:
    """What shows that randomness decides the reward; empty where nothing does.

    Args:
        luck: Moving average of `reward/luck_frac`; NaN where it was not measured.
        tasks: Entries of `envs.train`.

    >>> luck_words(0.1, [{"params": {"slip": 0.9}}])
    ''
    >>> luck_words(math.nan, [{"params": {"slip": 0.9}}])
    'randomness decides much of the reward: envs.train.0.params.slip is 0.9'
    """
    start = "randomness decides much of the reward:"
    if math.isfinite(luck):
        rest = "of the reward variance remains between samples of one task with the same actions"
        return f"{start} {percent(luck)} {rest}" if luck >= LUCK_SHARE else ""
    params = luck_params(tasks)
    if not any(value >= LEAST_PARAM for value in params.values()):
        return ""
    key, value = next(iter(params.items()))
    return f"{start} {key} is {value:g}"


def undivided(kind: object, normalization: object) -> dict[str, str]:
    """Settings with which the advantage no longer divides by the reward std of each group.

    Empty where it does not: luck then keeps the weight of a rare large reward.

    Args:
        kind: `advantage.kind`.
        normalization: `reward.normalization`.

    >>> undivided("grpo", "arpo"), undivided("rloo", "grpo"), undivided("rloo", "brpo")
    ({'advantage.kind': 'rloo'}, {'reward.normalization': 'arpo'}, {})
    """
    settings = {"advantage.kind": "rloo"} if kind == "grpo" else {}
    if normalization in ("grpo", "asym_clip"):
        settings["reward.normalization"] = "arpo"
    return settings


def luck_params(tasks: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Dotted key and value of what makes the worlds random."""
    return {
        f"envs.train.{n}.params.{name}": task["params"][name]
        for n, task in enumerate(tasks)
        for name in LUCK_PARAMS
        if isinstance(task.get("params"), Mapping)
        and isinstance(task["params"].get(name), int | float)
        and task["params"][name] > 0
    }


def moving_average(values: Iterable[float], start: float = math.nan) -> float:
    """Over steps, a tenth of it the newest; what is not finite is left out."""
    mean = start
    for value in values:
        if math.isfinite(value):
            mean = value if math.isnan(mean) else 0.9 * mean + 0.1 * value
    return mean
