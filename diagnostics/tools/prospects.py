"""Whether a run is likely to collapse within its first hundred steps, by its first rollouts.

Five signs, each of which has made runs collapse: rewards that are mostly luck, under an advantage
that divides by the group's spread; steps that move the policy far; an entropy bonus whose gradient
outweighs the task's; a term of the reward that pays for something else; a critic that diverges.
The limits were set on seed 0 of the recipes of CollapseBench, and those of the last two on seeds 0
and 1 of CureBench; `benchmarks/prospects.py` counts hits and false alarms on other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echoscope.store.records import RolloutBatch
from echoscope.text.amounts import number, percent

from ..judge.advice.causes import PAID, rounded
from ..judge.advice.luck import LUCK_SHARE
from ..judge.advice.usual import MOST as USUAL
from ..measure.rewards import luck_share, term_shares

HORIZON = 100
"""Steps that are spoken of."""
FAR = 0.1
"""Nats a token that two updates may move the policy at the highest learning rate."""
OUTWEIGHS = 0.1
"""Gradient of the entropy bonus over the task's, from which the bonus wins once success is near
its best: then most groups have no reward spread, and the task's gradient goes to zero."""
GROWN = 2.0
"""Times the critic's loss on the same rollouts after an update that is no longer learning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term:
    """A term that a run adds to the environment's reward."""

    name: str
    weight: str
    """The setting that is its weight."""
    share: float
    """Of the reward's differences between siblings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What the settings and a few rollouts and updates without consequences show."""

    luck: float = math.nan
    """Share of the reward differences that actions do not explain."""
    undivided: Mapping[str, Any] = field(default_factory=dict)
    """Settings with which the advantage does not divide by the group's reward std; empty where it
    does not."""
    shift: float = math.nan
    """Nats a token that two dry updates moved the policy, at the highest learning rate."""
    lr: float = math.nan
    """That learning rate."""
    bonus: float = math.nan
    """Gradient of the entropy bonus over the task's; NaN without a bonus."""
    terms: Sequence[Term] = ()
    """What the run adds to the reward, but for pay for the format."""
    critic_growth: float = math.nan
    """Critic's loss after one update over the loss before it, on the same rollouts."""
    critic_lr: float = math.nan
    """The critic's learning rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prospect:
    """One reason why a run is likely to collapse, and what to change."""

    text: str
    advice: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Dotted key to the value that takes the reason away."""


def luck_of(batches: Sequence[RolloutBatch]) -> float:
    """Mean luck of some steps; NaN where none shows any."""
    shares = [share for batch in batches if math.isfinite(share := luck_share(batch))]
    return float(np.mean(shares)) if shares else math.nan


def terms_of(batches: Sequence[RolloutBatch], weights: Mapping[str, str]) -> tuple[Term, ...]:
    """The terms of these names, with the mean of their shares in the steps whose rewards differ.

    Args:
        weights: Name to the setting that is its weight.
    """
    steps = [shares for batch in batches if (shares := term_shares(batch))]
    return tuple(
        Term(name=name, weight=key, share=float(np.mean([step.get(name, 0.0) for step in steps])))
        for name, key in weights.items()
        if steps
    )


def prospects(signs: Signs) -> Iterator[Prospect]:
    """Why this run is likely to collapse; nothing where no sign says so."""
    start = f"The run is likely to collapse within {HORIZON} steps:"
    if signs.undivided and signs.luck >= LUCK_SHARE:
        yield Prospect(
            text=f"{start} {percent(signs.luck)} of the differences in reward are luck, and the "
            "advantage divides by each group's spread, which favours the safe choice.",
            advice="Use an advantage that does not divide, or tasks that luck does not decide.",
            settings=signs.undivided,
        )
    if signs.shift >= FAR:
        lower = rounded(signs.lr * math.sqrt(FAR / signs.shift) / 2)
        yield Prospect(
            text=f"{start} the updates of two steps at its highest learning rate, {signs.lr:g}, "
            f"move the policy by {number(signs.shift)} nats a token; {FAR:g} is much.",
            advice="Lower the learning rate.",
            settings={"optim.lr": lower},
        )
    if signs.bonus >= OUTWEIGHS:
        yield Prospect(
            text=f"{start} the gradient of the entropy bonus is {percent(signs.bonus)} of the "
            "task's, and outweighs it once most groups succeed.",
            advice="Lower the bonus, or leave it out.",
            settings={"loss.entropy_coef": 0},
        )
    for term in signs.terms:
        if term.share >= PAID:
            yield Prospect(
                text=f"{start} the term `{term.name}` of the reward makes {percent(term.share)} of "
                "the differences in reward between samples of one task.",
                advice="Lower its weight, or leave it out, unless it pays for what solves tasks.",
                settings={term.weight: 0},
            )
    if signs.critic_growth >= GROWN:
        yield Prospect(
            text=f"{start} an update multiplies the critic's loss on the same rollouts by "
            f"{number(signs.critic_growth)}: it diverges.",
            advice="Lower the critic's learning rate.",
            settings={"critic.lr": rounded(min(signs.critic_lr / 10, USUAL["critic.lr"]))},
        )
