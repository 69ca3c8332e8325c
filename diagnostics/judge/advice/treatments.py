"""Treatments: what may be changed about a run that collapses, as settings in our own names.

A treatment is data: which settings it changes, and how the new value follows from the present one.
CureBench measures each of them (`diagnostics/bench/cures/`), advice offers them by what was
measured (`measured.py`), and whoever applies one asks it for the settings of a run.

    >>> run = {"optim.lr": 0.003, "loss.entropy_coef": 0.0}
    >>> treatment("lr-third").settings(run.get), treatment("no-entropy").settings(run.get)
    ({'optim.lr': 0.001}, {})
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Lookup = Callable[[str], Any]
"""Dotted key to the value that a run has; None where it has no such setting."""

ALL = ".*."
"""In a key: every entry of the list before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A new value of one setting; one of `to`, `times`, `at_least` and `at_most`."""

    key: str
    to: Any = None
    times: float = math.nan
    """The present number times this; counts are rounded, other numbers keep two digits."""
    at_least: float = math.nan
    at_most: float = math.nan

    def value(self, present: Any) -> Any:
        """The new value; the present one where nothing is to change."""
        if isinstance(self.to, tuple):
            return list(self.to)
        if not _is_number(present) or self.to is not None:
            return present if self.to is None else self.to
        if math.isfinite(self.times):
            return (
                round(present * self.times)
                if _is_count(present)
                else two_digits(present * self.times)
            )
        limit = self.at_least if math.isfinite(self.at_least) else self.at_most
        is_lower = present < limit
        return limit if is_lower == math.isfinite(self.at_least) and present != limit else present


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """Something to change about a run that is continued from a checkpoint."""

    name: str
    """Of one or two words; unique, and what records and the advice table call it."""
    label: str
    """What is done, after "continue with"."""
    why: str
    """How it should help, as one sentence."""
    changes: tuple[Change, ...] = ()
    is_of_task: bool = False
    """It changes the task, not the training."""
    only_if: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    """Settings, and the values of which each must have one for this to make sense."""

    def settings(self, present: Lookup) -> dict[str, Any]:
        """What it changes in a run, by dotted key; empty where it would change nothing."""
        if any(present(key) not in values for key, values in self.only_if):
            return {}
        changed = {}
        for change in self.changes:
            for key in _keys(change.key, present):
                old = present(key)
                new = change.value(old)
                if old is not None and new != old:
                    changed[key] = new
        return changed


def _keys(key: str, present: Lookup) -> Sequence[str]:
    """The key, or one for every entry of the list that it asks for."""
    before, is_list, after = key.partition(ALL)
    if not is_list:
        return [key]
    entries = present(before)
    count = len(entries) if isinstance(entries, Sequence) and not isinstance(entries, str) else 0
    return [f"{before}.{index}.{after}" for index in range(count)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int)


def two_digits(value: float) -> float:
    """Two significant digits.

    >>> two_digits(0.0013333), two_digits(0.00001)
    (0.0013, 1e-05)
    """
    return float(f"{value:.1e}")


UNTREATED = "untreated"
"""The arm that is not even rewound: the run as it goes on."""
REWOUND = "rewound"
PLACEBO = "placebo"
ADVICE = "advice"
"""The arm that does what the verdict suggested first."""
GUARDED = "guarded"
"""The arm that is trained from the first step with a guard, which treats it by itself."""

CONTROLS: tuple[Treatment, ...] = (
    Treatment(
        name=REWOUND,
        label="its own settings",
        why="Nothing is changed: the checkpoint alone.",
    ),
    Treatment(
        name=PLACEBO,
        label="another weight decay",
        why="A change that has nothing to do with any collapse.",
        changes=(Change(key="optim.weight_decay", to=0.01),),
    ),
)
"""What every treatment is compared with."""

TREATMENTS: tuple[Treatment, ...] = (
    Treatment(
        name="lr-third",
        label="a third of the learning rate",
        why="Smaller steps move the policy less at a time.",
        changes=(Change(key="optim.lr", times=1 / 3),),
    ),
    Treatment(
        name="lr-tenth",
        label="a tenth of the learning rate",
        why="Much smaller steps move the policy less at a time.",
        changes=(Change(key="optim.lr", times=0.1),),
    ),
    Treatment(
        name="kl",
        label="a KL penalty against the reference policy",
        why="The penalty pulls the policy back to the weights that it started from.",
        changes=(Change(key="loss.kl_coef", at_least=0.1),),
    ),
    Treatment(
        name="less-kl",
        label="a tenth of the KL penalty",
        why="A smaller penalty leaves more of each update to the reward.",
        changes=(Change(key="loss.kl_coef", times=0.1),),
    ),
    Treatment(
        name="no-entropy",
        label="no entropy term",
        why="Without the term only the reward moves the policy.",
        changes=(Change(key="loss.entropy_coef", to=0.0),),
    ),
    Treatment(
        name="entropy-bonus",
        label="a small entropy bonus",
        why="The bonus keeps several replies likely.",
        changes=(Change(key="loss.entropy_coef", at_least=0.01),),
    ),
    Treatment(
        name="tight-clip",
        label="a tighter clip of the ratio and of the gradient",
        why="No sample and no batch can move the policy far.",
        changes=(
            Change(key="loss.clip_low", at_most=0.1),
            Change(key="loss.clip_high", at_most=0.1),
            Change(key="optim.grad_clip", at_most=0.1),
        ),
        only_if=(("loss.kind", ("clip",)),),
    ),
    Treatment(
        name="warm-up",
        label="a learning rate that rises over the first 40 steps",
        why="Early steps, whose gradients are largest, move the policy less.",
        changes=(Change(key="optim.warmup_steps", at_least=40),),
    ),
    Treatment(
        name="spread",
        label="only groups whose rewards differ",
        why="Only groups whose rewards differ show which replies are better.",
        changes=(
            Change(key="selection.strategy", to="top_p"),
            Change(key="selection.value", to=0.9),
        ),
        only_if=(("selection.strategy", ("none",)),),
    ),
    Treatment(
        name="siblings",
        label="twice as many samples of each task",
        why="The mean of more samples is a better baseline.",
        changes=(Change(key="envs.group_size", times=2),),
    ),
    Treatment(
        name="tasks",
        label="twice as many tasks a step",
        why="More tasks make each update less a matter of which were drawn.",
        changes=(Change(key=f"envs.train{ALL}groups", times=2),),
    ),
    Treatment(
        name="format-penalty",
        label="a penalty for replies that do not parse",
        why="Replies that lose their form cost something.",
        changes=(Change(key=f"envs.train{ALL}format_penalty", at_most=-0.1),),
    ),
    Treatment(
        name="cooler",
        label="a lower sampling temperature",
        why="Unlikely tokens are sampled less often, and reinforced less.",
        changes=(Change(key="sampling.temperature", at_most=0.7),),
    ),
    Treatment(
        name="importance",
        label="samples weighed by how likely the trainer finds them",
        why="Samples of older weights then count by what the present ones would say.",
        changes=(
            Change(key="off_policy.old_logprobs", to="trainer"),
            Change(key="off_policy.correction", to="tis"),
            Change(key="off_policy.cap", to=2.0),
        ),
    ),
    Treatment(
        name="one-pass",
        label="one update on each batch",
        why="A batch that is used once is not overfitted.",
        changes=(
            Change(key="optim.epochs", at_most=1),
            Change(key="optim.minibatches", at_most=1),
        ),
    ),
    Treatment(
        name="no-shaping",
        label="the environment's reward alone",
        why="Without the added terms the reward pays for solving the tasks.",
        changes=(Change(key="reward.shaping", to=()),),
    ),
    Treatment(
        name="rloo",
        label="RLOO instead of an advantage that divides by the spread or asks a critic",
        why="A rare large reward keeps its weight, and no critic can mislead.",
        changes=(Change(key="advantage.kind", to="rloo"),),
        only_if=(("advantage.kind", ("grpo", "gae", "bi_level_gae")),),
    ),
    Treatment(
        name="calm-critic",
        label="a tenth of the critic's learning rate and weight",
        why="The critic then moves the policy's trunk less, and its values jump less.",
        changes=(Change(key="critic.lr", times=0.1), Change(key="loss.value_coef", times=0.1)),
        only_if=(("critic.kind", ("head", "model")),),
    ),
    Treatment(
        name="undo-luck",
        label="moves that do what they say",
        why="Then the reward shows which replies are better. The task changes, not the training.",
        is_of_task=True,
        changes=(Change(key=f"envs.train{ALL}params.slip", to=0.0),),
    ),
)

_BY_NAME: Mapping[str, Treatment] = {each.name: each for each in (*CONTROLS, *TREATMENTS)}


def treatment(name: str) -> Treatment:
    """The treatment of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
