"""TRL's GRPO and RLOO: `completions/completions_<step>.parquet`.

A float column per reward function stands beside `prompt`, `completion` and `advantage`. NaN means
that the function returned None. The weights of the functions (`reward_weights` of the trainer) are
not in the file: without them the sum of several functions is no return that the trainer knows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..dialogue import is_messages, read_flat, read_messages
from ..draft import Draft, number, number_or_none, without
from ..format import Format, Row, has_keys, step_key

_KNOWN = ("step", "prompt", "completion", "advantage")
_TIME = "timestamp"


def episode(row: Row, weights: Sequence[float] | None = None) -> Draft:
    """The episode of a row.

    Args:
        weights: Of the reward functions, in the order of their columns; None: not known. Weights
            of another number say nothing.
    """
    prompt, completion = row["prompt"], row["completion"]
    is_guess = False
    if is_messages(prompt) and is_messages(completion):
        dialogue = read_messages([*prompt, *completion])
    else:
        dialogue, is_guess = read_flat(str(prompt or ""), str(completion or ""))
    rewards = {name: number(row[name]) for name in reward_columns(row)}
    known = {name: value for name, value in rewards.items() if not math.isnan(value)}
    is_weighted = weights is not None and len(weights) == len(rewards)
    terms = dict(zip(rewards, weights or (), strict=True)) if is_weighted else {}
    draft = dialogue.draft(
        without(row, (*_KNOWN, *known)),
        reward=sum(terms.get(n, 1.0) * known[n] for n in known) if known else math.nan,
        is_guess=is_guess,
        prompt=str(prompt),
        advantage=number_or_none(row["advantage"]),
    )
    draft.add_info({f"reward/{name}": value for name, value in known.items()})
    if len(rewards) > 1 and not is_weighted:
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
