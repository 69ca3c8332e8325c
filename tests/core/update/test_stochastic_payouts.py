"""Dividing by the group's std can teach the worse arm: exact expected policy gradients.

Two arms: one always pays .1, the other pays 1 with probability .25 (mean .25), so the second is
better. The policy picks it with probability p = sigmoid(theta). All groups that G pulls can give
are enumerated, with their probabilities.
"""

from __future__ import annotations

import math

import pytest
import torch

from echoscope.core.config.settings import GroupRelativeConfig
from echoscope.core.update.advantages import estimate_advantages
from echoscope.core.update.batch import TokenBatch

GRPO = GroupRelativeConfig(kind="grpo")
DR_GRPO = GroupRelativeConfig(kind="dr_grpo")
RLOO = GroupRelativeConfig(kind="rloo")

LOW, HIGH, WIN_PROBABILITY = 0.1, 1.0, 0.25


def compositions(size: int) -> list[tuple[int, int, int]]:
    """Pulls of the safe arm, losing and winning pulls of the other."""
    return [(a, b, size - a - b) for a in range(size + 1) for b in range(size + 1 - a)]


def expected_gradient(config, group_size: int, p: float = 0.5) -> float:
    """E[mean over the group of A d log pi / d theta] for theta of the better arm."""
    groups = compositions(group_size)
    rewards, slopes, owners = [], [], []
    for index, (safe, lost, won) in enumerate(groups):
        rewards += [LOW] * safe + [0.0] * lost + [HIGH] * won
        slopes += [-p] * safe + [1 - p] * (lost + won)
        owners += [index] * group_size
    size = len(rewards)
    mask = torch.ones(size, 1, dtype=torch.bool)
    batch = TokenBatch(
        input_ids=torch.zeros(size, 1, dtype=torch.int64),
        attention_mask=mask,
        loss_mask=mask,
        turn_index=torch.zeros(size, 1, dtype=torch.int64),
        behaviour_logprobs=torch.zeros(size, 1),
        token_rewards=torch.tensor(rewards)[:, None],
        trajectory_index=torch.arange(size),
        group_index=torch.tensor(owners),
        trajectory_num_tokens=torch.ones(size, dtype=torch.int64),
    )
    advantages, _ = estimate_advantages(batch, config)
    per_group = (advantages[:, 0].double() * torch.tensor(slopes).double()).reshape(
        len(groups), group_size
    )
    odds = (1 - p, p * (1 - WIN_PROBABILITY), p * WIN_PROBABILITY)
    total = 0.0
    for counts, gradient in zip(groups, per_group.mean(1).tolist(), strict=True):
        ways = math.factorial(group_size)
        for count, chance in zip(counts, odds, strict=True):
            ways *= chance**count / math.factorial(count)
        total += ways * gradient
    return total


def test_the_true_gradient_points_at_the_better_arm():
    # p (1 - p) (.25 - .1) = .0375, which rloo estimates without bias.
    for group_size in (2, 4, 8):
        assert expected_gradient(RLOO, group_size) == pytest.approx(0.0375, abs=1e-6)


def test_without_std_division_it_is_only_shrunk():
    # dr_grpo counts a trajectory in its own baseline: (1 - 1/G) of it.
    assert expected_gradient(DR_GRPO, 8) == pytest.approx(0.0375 * 7 / 8, abs=1e-6)
    assert expected_gradient(DR_GRPO, 8) == pytest.approx(0.033, abs=5e-4)


def test_with_std_division_it_points_at_the_worse_arm():
    assert expected_gradient(GRPO, 8) == pytest.approx(-0.045, abs=5e-4)
    assert expected_gradient(GRPO, 4) == pytest.approx(-0.12, abs=5e-3)


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_the_sign_is_right_without_it_wherever_the_policy_stands(p):
    for config in (RLOO, DR_GRPO):
        assert expected_gradient(config, 8, p) > 0
