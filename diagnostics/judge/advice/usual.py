"""Which settings of a run let steps grow far beyond those of the recipes that do not collapse?

Where a run extends a recipe, that recipe is the measure; else all shipped recipes that train the
same model, for the learning rate on the same world. `tests/diagnostics/judge/test_usual.py` holds
the numbers here against the recipes.
"""

from __future__ import annotations

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
        "": 1.5e-4,
        "bandit": 1e-4,
        "price_list": 1e-4,
        "deepcoder": 1e-5,
        "frozen_lake": 3e-4,
    },
    "tiny-puzzles": {"": 1.5e-4},
    "smollm2": {"": 5e-4},
}
"""The highest `optim.lr` by model and world; `""`: of every other world."""


@dataclass(frozen=True, slots=True)
class Unusual:
    """A setting that is above what recipes have."""

    key: str
    own: float
    usual: float
    """The recipes' highest value."""


def unusual(situation: Situation) -> tuple[Unusual, ...]:
    """The settings that are above what recipes have, the learning rate first.

    None where none is more than `FACTOR` times as high.
    """
    name, values = situation.recipe
    limits: Mapping[str, object] = values if name else {**_rate(situation), **MOST}
    above = []
    for key in ("optim.lr", *MOST):
        own, usual = situation.number(key), limits.get(key)
        is_of_clip = not key.startswith("loss.clip") or situation.setting("loss.kind") == "clip"
        if isinstance(usual, int | float) and is_of_clip and own > usual:
            above.append(Unusual(key, own, usual))
    return tuple(above) if any(each.own > FACTOR * each.usual for each in above) else ()


def _rate(situation: Situation) -> Mapping[str, float]:
    by_world = RATES.get(str(situation.setting("model.path")))
    if not by_world:
        return {}
    worlds = [str(task.get("env")) for task in situation.tasks]
    return {"optim.lr": max((by_world.get(w, by_world[""]) for w in worlds), default=by_world[""])}
