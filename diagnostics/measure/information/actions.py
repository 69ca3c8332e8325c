"""I(X;A): do the executed actions depend on the prompt? Counts only, no model.

Ignoring the board in the reasoning may be harmless; ignoring it in the *actions* costs reward. This
is not I(X; answer given Z), which is near zero wherever answers follow from the reasoning.

    >>> from echoscope.diagnostics.measure.information.actions import estimate_actions
    >>> boards = ["a"] * 8 + ["b"] * 8
    >>> round(estimate_actions(["Up"] * 8 + ["Left"] * 8, boards).mutual_information, 3)  # ln 2
    0.693
    >>> round(estimate_actions(["Up", "Left"] * 8, boards).mutual_information, 2)
    -0.04
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.metrics.cluster import expected_mutual_information

from echoscope.store.records import FloatArray64, IntArray64, Trajectory

from .intervals import Interval, cluster_half_widths, pseudo_values

NAN = float("nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionInformation:
    """Nats. NaN with a `problem` where there is too little to say."""

    num_actions: int
    num_prompts: int
    problem: str = ""
    mutual_information: float = NAN
    """Corrected for chance; may be slightly negative."""
    plug_in: float = NAN
    """H(A) - H(A given X) of the counts: far too high with few siblings."""
    chance: float = NAN
    """The plug-in's exact mean when actions are dealt out at random."""
    ceiling: float = NAN
    """The smaller of H(A) and H(X): what full dependence would give."""
    action_entropy: float = NAN
    """H(A) of the counts."""
    p_value: float = NAN
    """Of the plug-in, under permutation of the actions."""
    interval: Interval | None = None
    """Over prompts."""

    @property
    def is_available(self) -> bool:
        return not self.problem

    def metrics(self) -> dict[str, float]:
        """`info/actions/...`: always the same keys, NaN where not available."""
        values = {
            "mutual_information": self.mutual_information,
            "mutual_information_low": self.interval.low if self.interval else NAN,
            "mutual_information_high": self.interval.high if self.interval else NAN,
            "plug_in": self.plug_in,
            "chance": self.chance,
            "ceiling": self.ceiling,
            "action_entropy": self.action_entropy,
            "p_value": self.p_value,
            "num_actions": float(self.num_actions),
            "num_prompts": float(self.num_prompts),
        }
        return {f"info/actions/{name}": value for name, value in values.items()}


def first_actions(trajectories: Sequence[Trajectory]) -> tuple[list[str], list[str]]:
    """First executed action of the first turn, and the first prompt's key, where there is one."""
    played = [t for t in trajectories if t.turns and t.turns[0].actions]
    return [t.turns[0].actions[0] for t in played], [t.prompt_key for t in played]


def estimate_actions(
    actions: Sequence[Hashable],
    prompts: Sequence[Hashable],
    *,
    level: float = 0.95,
    num_permutations: int = 1000,
    seed: int = 0,
) -> ActionInformation:
    """I(X;A) of actions and the prompts they were played under, in any order.

    The plug-in I is corrected as the adjusted mutual information is (Vinh, Epps and Bailey 2010,
    JMLR 11, equation 13): (I - E) * ceiling / (ceiling - E), with E its exact mean under
    permutation. With 8 prompts of 4 to 16 actions the bias is below 0.04 nats where the plug-in's
    is 0.06 to 0.5. Prompts with a single action cannot tell their spread and are left out.

    Raises:
        ValueError: actions and prompts are not of the same number.
    """
    if len(actions) != len(prompts):
        raise ValueError(f"{len(actions)} actions for {len(prompts)} prompts")
    counts_NA = _counts(actions, prompts)
    counts_NA = counts_NA[counts_NA.sum(axis=1) > 1]
    num_actions, num_prompts = int(counts_NA.sum()), len(counts_NA)
    if num_prompts < 2:
        problem = (
            f"{num_prompts} of {len(set(prompts))} prompts have two actions or more: "
            "I(X;A) needs two such prompts"
        )
        return ActionInformation(num_actions=num_actions, num_prompts=num_prompts, problem=problem)
    rng = np.random.default_rng(seed)
    value = _adjusted(counts_NA)
    without_C1 = np.array(
        [[_adjusted(np.delete(counts_NA, n, axis=0))] for n in range(num_prompts)]
    )
    half = np.nan
    if num_prompts > 2:
        pseudo_C1 = pseudo_values(np.array([value]), without_C1)
        half = float(cluster_half_widths(pseudo_C1, level=level, rng=rng)[0])
    ceiling = _ceiling(counts_NA)
    return ActionInformation(
        num_actions=num_actions,
        num_prompts=num_prompts,
        mutual_information=value,
        plug_in=_plug_in(counts_NA),
        chance=_chance(counts_NA),
        ceiling=ceiling,
        action_entropy=float(_entropy(counts_NA.sum(axis=0))),
        p_value=_p_value(counts_NA, num_permutations, rng),
        interval=Interval.around(value, half, level, "prompt distribution", (0.0, ceiling)),
    )


def _counts(actions: Sequence[Hashable], prompts: Sequence[Hashable]) -> IntArray64:
    """How often each action was played under each prompt, (N, A)."""
    action_place = {action: i for i, action in enumerate(dict.fromkeys(actions))}
    prompt_place = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
    counts_NA = np.zeros((len(prompt_place), len(action_place)), dtype=np.int64)
    for action, prompt in zip(actions, prompts, strict=True):
        counts_NA[prompt_place[prompt], action_place[action]] += 1
    return counts_NA


def _entropy(counts: IntArray64) -> FloatArray64:
    """Of counts over the last axis."""
    shares = counts / counts.sum(axis=-1, keepdims=True)
    out: FloatArray64 = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=-1)
    return out


def _plug_in(counts_NA: IntArray64) -> float:
    sizes_N = counts_NA.sum(axis=1)
    within = float(sizes_N @ _entropy(counts_NA)) / float(sizes_N.sum())
    return float(_entropy(counts_NA.sum(axis=0))) - within


def _ceiling(counts_NA: IntArray64) -> float:
    return float(min(_entropy(counts_NA.sum(axis=0)), _entropy(counts_NA.sum(axis=1))))


def _chance(counts_NA: IntArray64) -> float:
    used = counts_NA[:, counts_NA.sum(axis=0) > 0]
    return float(expected_mutual_information(used, int(used.sum())))


def _adjusted(counts_NA: IntArray64) -> float:
    """Zero where only one action, or one prompt, is left: neither can tell anything."""
    ceiling, chance = _ceiling(counts_NA), _chance(counts_NA)
    if ceiling - chance <= 1e-12:
        return 0.0
    return (_plug_in(counts_NA) - chance) * ceiling / (ceiling - chance)


def _p_value(counts_NA: IntArray64, num_permutations: int, rng: np.random.Generator) -> float:
    """Share of deals of the same actions that depend on the prompt as much as these do."""
    num_prompts, num_kinds = counts_NA.shape
    prompt_of = np.repeat(np.arange(num_prompts), counts_NA.sum(axis=1))
    action_of = np.concatenate([np.repeat(np.arange(num_kinds), row) for row in counts_NA])
    dealt = rng.permuted(np.tile(action_of, (num_permutations, 1)), axis=1)
    table = np.arange(num_permutations)[:, None] * counts_NA.size + prompt_of * num_kinds + dealt
    counts = np.bincount(table.ravel(), minlength=num_permutations * counts_NA.size)
    # A deal keeps the number of each action and the size of each prompt; what is left of the
    # plug-in is the sum of c ln c over its cells.
    c_ln_c = np.arange(len(action_of) + 1) * np.log(np.maximum(np.arange(len(action_of) + 1), 1))
    dealt_sums = c_ln_c[counts].reshape(num_permutations, -1).sum(axis=1)
    num_as_high = int((dealt_sums >= c_ln_c[counts_NA].sum() - 1e-9).sum())
    return (1 + num_as_high) / (1 + num_permutations)
