"""TRL's GRPO and RLOO: `completions/completions_<step>.parquet`.

A float column per reward function stands beside `prompt`, `completion` and `advantage`. NaN means
that the function returned None. The weights of the functions (`reward_weights` of the trainer) are
not in the file: without them the sum of several functions is no return that the trainer knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .. import read
from ..draft import Draft
from ..format import Format, Row, has_keys, step_key
from .by_keys import Keys, draft_of

_KEYS = Keys(prompt=("prompt",), reply=("completion",), reward=())
_KNOWN = ("step", "prompt", "completion", "advantage")
_TIME = "timestamp"


def episode(row: Row, weights: Sequence[float] | None = None) -> Draft:
    """The episode of a row.

    Args:
        weights: Of the reward functions, in the order of their columns; None: not known. Weights
            of another number say nothing.
    """
    columns = reward_columns(row)
    rewards = {name: value for name in columns if not math.isnan(value := read.number(row[name]))}
    rest = {name: v for name, v in row.items() if name not in rewards and name != "advantage"}
    is_weighted = weights is not None and len(weights) == len(columns)
    weight_of = dict(zip(columns, weights or (), strict=True)) if is_weighted else {}
    draft = draft_of(rest, _KEYS)
    draft.advantage = read.number_or_none(row["advantage"])
    if rewards:
        draft.set_episode_reward(sum(weight_of.get(n, 1.0) * rewards[n] for n in rewards))
    draft.add_info({f"reward/{name}": value for name, value in rewards.items()})
    if len(columns) > 1 and not is_weighted:
        draft.reconstructed.add("reward_terms")
    return draft


def reward_columns(row: Row) -> list[str]:
    """The columns of the reward functions, in the trainer's order."""
    return [
        name
        for name, value in row.items()
        if name not in (*_KNOWN, _TIME) and (value is None or isinstance(value, float))
    ]


COMPLETIONS = Format(
    name="TRL completions Parquet",
    trainer="TRL",
    matches=has_keys(*_KNOWN),
    drafts=lambda row, where: [episode(row)],
    step=step_key("step"),
)
