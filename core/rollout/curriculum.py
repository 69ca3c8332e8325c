"""How many groups each environment of `envs.train` gets: most where success is near one half.

A group whose episodes all succeed or all fail has no learning signal. With success p of a single
episode the variance of the outcome is p (1 - p), which is largest at one half: environments are
weighted by it (Foster et al. 2025, "learnability").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from echoscope.store.records import RolloutBatch

from ..config.settings import RunConfig
from ..update.metrics import success_rate

LEAST_WEIGHT = 0.1
"""Of a solved or hopeless environment; one at 50 % success has 1."""
MEMORY = 0.8
"""Weight of earlier steps in the running success."""


def group_counts(config: RunConfig, success: Mapping[str, float]) -> list[int]:
    """Groups of each entry of `envs.train` in the next step; their sum stays as configured.

    An entry's weight is its configured number of groups times 4 p (1 - p), at least
    `LEAST_WEIGHT`; 1 while its success p is not known. Every entry gets at least one group, so that
    its success stays known. The rest is divided by largest remainder, ties to the earlier entry.

    Args:
        success: Tag to its running success, see `note_success`.
    """
    entries = config.envs.train
    base = [entry.groups for entry in entries]
    if config.curriculum.by == "none":
        return base
    weights = [entry.groups * _weight(success.get(entry.name)) for entry in entries]
    return divide(sum(base), weights)


def with_groups(config: RunConfig, success: Mapping[str, float]) -> RunConfig:
    """The configuration of a step in which each environment has its `group_counts`."""
    if config.curriculum.by == "none":
        return config
    entries = zip(config.envs.train, group_counts(config, success), strict=True)
    train = [entry.model_copy(update={"groups": count}) for entry, count in entries]
    return config.model_copy(update={"envs": config.envs.model_copy(update={"train": train})})


def divide(total: int, weights: Sequence[float]) -> list[int]:
    """`total` in whole shares of at least 1, as near to the weights as whole numbers can be.

    >>> divide(10, [1, 1, 2]), divide(8, [1.0, 0.01]), divide(3, [5, 0.1, 0.1])
    ([3, 2, 5], [7, 1], [1, 1, 1])
    """
    ideal = [total * weight / sum(weights) for weight in weights]
    shares = [max(1, int(each)) for each in ideal]
    places = range(len(shares))
    while sum(shares) < total:
        shares[max(places, key=lambda k: (ideal[k] - shares[k], -k))] += 1
    while sum(shares) > total:
        spare = [k for k in places if shares[k] > 1]
        shares[max(spare, key=lambda k: (shares[k] - ideal[k], k))] -= 1
    return shares


def note_success(success: Mapping[str, float], rollouts: RolloutBatch) -> dict[str, float]:
    """The running success of each tag after a step: `MEMORY` of the old, the rest of the new.

    A tag without a known success in this step keeps what it had.
    """
    out = dict(success)
    for tag in dict.fromkeys(group[0].tag for group in rollouts.groups):
        rate = success_rate([t for t in rollouts.trajectories if t.tag == tag])
        if rate == rate:
            old = out.get(tag, rate)
            out[tag] = MEMORY * old + (1 - MEMORY) * rate
    return out


def curriculum_metrics(
    config: RunConfig, counts: Sequence[int], success: Mapping[str, float]
) -> dict[str, float]:
    """`curriculum/...` of a step: the share of groups of each tag, and its running success."""
    if config.curriculum.by == "none":
        return {}
    out: dict[str, float] = {}
    for entry, count in zip(config.envs.train, counts, strict=True):
        out[f"curriculum/{entry.name}/group_frac"] = count / sum(counts)
        if entry.name in success:
            out[f"curriculum/{entry.name}/success"] = success[entry.name]
    return out


def _weight(success: float | None) -> float:
    return 1.0 if success is None else max(LEAST_WEIGHT, 4 * success * (1 - success))
