"""Plug-ins as users write them: some right, some wrong in one way each."""

from __future__ import annotations

import numpy as np
import torch

# -- right ones ----------------------------------------------------------------------------------


def grpo(inputs, *, eps: float = 1e-6):
    """What advantage.kind=grpo does, for steps from which nothing is left out."""
    advantages_N = np.zeros(len(inputs.groups_N))
    for group in np.unique(inputs.groups_N):
        members = inputs.groups_N == group
        returns = inputs.returns_N[members]
        std = returns.std(ddof=1) if len(returns) > 1 else 0.0
        if std > 1e-6 * np.abs(returns).max():
            advantages_N[members] = (returns - returns.mean()) / (std + eps)
    return np.where(inputs.mask_NL, advantages_N[:, None], 0.0)


def with_targets(inputs):
    return grpo(inputs), np.where(inputs.mask_NL, 0.5, 0.0)


def clip(inputs, *, low: float = 0.2, high: float = 0.28):
    """What loss.kind=clip does with dual_clip=null."""
    ratio = (inputs.logprobs_L - inputs.old_logprobs_L).clamp(-20, 20).exp()
    clipped = ratio.clamp(1 - low, 1 + high)
    return torch.maximum(-inputs.advantages_L * ratio, -inputs.advantages_L * clipped)


def undecided(groups, *, least: float = 0.0):
    """Groups in which some siblings succeeded and some did not."""
    rates_P = np.where(groups.trainable_PG, groups.returns_PG, 0.0).std(axis=1)
    return rates_P > least


def positive(groups):
    return groups.returns_PG > 0


class Counting:
    """Counts episodes over the whole run, so it has something to remember."""

    def __init__(self, start: int = 0) -> None:
        self.total = start

    def observe(self, seen):
        self.total += len(seen.rollouts.trajectories)
        return {"episodes/total": self.total}

    def state(self):
        return {"total": self.total}

    def restore(self, state):
        self.total = state["total"]


# -- wrong ones ----------------------------------------------------------------------------------


def wrong_shape(inputs):
    return inputs.returns_N


def not_a_number(inputs):
    centred = inputs.rewards_NL - inputs.rewards_NL.mean()
    with np.errstate(invalid="ignore"):
        return np.where(inputs.mask_NL, centred / inputs.rewards_NL.std() / 0.0, 0.0)


def beyond_the_end(inputs):
    return np.ones(inputs.mask_NL.shape)


def rolls_dice(inputs):
    return np.where(inputs.mask_NL, np.random.default_rng().normal(size=inputs.mask_NL.shape), 0.0)


def writes(inputs):
    inputs.rewards_NL[:] = 0
    return inputs.rewards_NL


def leaves(inputs):
    raise SystemExit(0)


def mean_of_microbatch(inputs):
    centred = inputs.advantages_L - inputs.advantages_L.mean()
    return -centred * inputs.logprobs_L


def one_number(inputs):
    return -(inputs.advantages_L * inputs.logprobs_L).mean()


def no_gradient(inputs):
    return -inputs.advantages_L * inputs.logprobs_L.detach()


def infinite(inputs):
    return inputs.logprobs_L / 0.0


def keeps_numbers(groups):
    return groups.returns_PG.mean(axis=1)


def keeps_too_few(groups):
    return np.array([True])


def reward_of_luck(turn):
    return float(np.random.default_rng().random())


class Forgetful(Counting):
    def state(self):
        return {"total": 0}


class OneSided:
    def observe(self, seen):
        return {}

    def state(self):
        return {}


class Blind:
    pass


class Shouting:
    def observe(self, seen):
        return {"LOUD": 1.0}


# -- wrong ones that only show during a run ------------------------------------------------------


def late_loss(inputs):
    """NaN once a reply is as long as those of the tests' runs."""
    loss = -inputs.advantages_L * inputs.logprobs_L
    is_long = len(loss) > 70
    return loss * float("nan") if is_long else loss


class Late:
    """Fails at the third step of a run."""

    def observe(self, seen):
        if seen.step == 3:
            raise RuntimeError("my disk is full")
        return {"step": seen.step}
