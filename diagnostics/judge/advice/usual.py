"""Which settings of a run let steps grow far beyond those of the recipes that do not collapse?

Where a run extends a recipe, that recipe is the measure. Else it is all healthy recipes; for the
learning rate those that train the same model on the same worlds. The numbers here are held against
the recipes by `tests/diagnostics/judge/test_usual.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from .situation import Situation

FACTOR = 2.0
"""Times the highest value of the recipes that is still usual."""
MOST: Mapping[str, float] = {
    "optim.epochs": 1,
    "optim.minibatches": 2,
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.28,
    "loss.value_coef": 0.5,
    "critic.lr": 1e-3,
}
"""The highest value of each setting in the recipes; the clip's only of the loss `clip`."""
RATES: Mapping[str, Mapping[str, float]] = {
    "tiny": {
        "deepcoder": 1e-5,
        **dict.fromkeys(("bandit", "price_list"), 1e-4),
        **dict.fromkeys(
            (
                *("alfworld", "gymnasium", "lean", "remote", "search_qa", "search_tools"),
                *("shop_tools", "sokoban", "spatial", "textworld", "treasure", "webshop"),
            ),
            1.5e-4,
        ),
        "frozen_lake": 3e-4,
    },
    "tiny-puzzles": dict.fromkeys(
        ("countdown", "game_2048", "metamathqa", "rubiks", "static_qa", "sudoku"), 1.5e-4
    ),
    "smollm2": dict.fromkeys(("bandit", "frozen_lake"), 5e-4),
}
"""The highest `optim.lr` by model and world."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """A setting that is above what recipes have."""

    key: str
    own: float
    usual: float
    """The recipes' highest value."""
    recipes: str
    """Which recipes, as words."""


def unusual(situation: Situation) -> tuple[Unusual, ...]:
    """The settings that are above what recipes have, the learning rate first.

    None where none is more than `FACTOR` times as high.
    """
    name, values = situation.recipe
    rate, rate_of = _rate(situation)
    limits: Mapping[str, object] = values if name else {"optim.lr": rate, **MOST}
    above = []
    for key in ("optim.lr", *MOST):
        own, usual = situation.number(key), limits.get(key)
        is_of_clip = not key.startswith("loss.clip") or situation.setting("loss.kind") == "clip"
        if isinstance(usual, int | float) and is_of_clip and own > usual:
            recipes = rate_of if key == "optim.lr" else "all healthy recipes"
            above.append(Unusual(key, own, usual, f"`{name}`" if name else recipes))
    return tuple(above) if any(each.own > FACTOR * each.usual for each in above) else ()


def _rate(situation: Situation) -> tuple[float, str]:
    """The highest rate of the recipes for this model and its worlds, and which recipes they are.

    Of all recipes for the model where none has such a world; NaN where none trains the model.
    """
    model = str(situation.setting("model.path"))
    by_world = RATES.get(model, {})
    worlds = dict.fromkeys(str(task.get("env")) for task in situation.tasks)
    rates = [by_world[world] for world in worlds if world in by_world]
    if len(rates) == len(worlds) and rates:
        return max(rates), f"healthy recipes that train `{model}` on {' and '.join(worlds)}"
    return max(by_world.values(), default=math.nan), f"healthy recipes that train `{model}`"
