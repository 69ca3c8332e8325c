"""The KL penalty in the reward, and the coefficient that follows it."""

from __future__ import annotations

import pytest
import torch

from echoscope.core.config.settings import KlRewardConfig
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.kl import mean_kl, penalize


def two_rows() -> TokenBatch:
    """Two trajectories of two and one sampled tokens, behind one token of prompt."""
    mask = torch.tensor([[False, True, True], [False, True, False]])
    return TokenBatch(
        input_ids=torch.zeros(2, 3, dtype=torch.int64),
        attention_mask=torch.ones(2, 3, dtype=torch.bool),
        loss_mask=mask,
        turn_index=torch.where(mask, 0, -1),
        behaviour_logprobs=torch.tensor([[0.0, -1.0, -2.0], [0.0, -0.5, 0.0]]),
        token_rewards=torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.25, 0.0]]),
        trajectory_index=torch.tensor([0, 1]),
        group_index=torch.tensor([0, 0]),
        trajectory_num_tokens=torch.tensor([2, 1]),
        ref_logprobs=torch.tensor([[0.0, -1.5, -1.0], [0.0, -0.5, 0.0]]),
    )


def test_each_sampled_token_is_paid_less_by_its_own_kl() -> None:
    # log p - log q is .5, -1 and 0 at the three sampled tokens.
    penalized = penalize(two_rows(), KlRewardConfig(coef=0.2))
    assert penalized.token_rewards.tolist() == [
        pytest.approx([0.0, -0.1, 1.2]),
        pytest.approx([0.0, 0.25, 0.0]),
    ]
    k2 = penalize(two_rows(), KlRewardConfig(coef=0.2, estimator="k2"))
    assert k2.token_rewards[0].tolist() == pytest.approx([0.0, -0.025, 0.9])


def test_the_kl_of_a_step_counts_every_trajectory_alike() -> None:
    # Means of the trajectories are -.25 and 0.
    assert mean_kl(two_rows(), KlRewardConfig()) == pytest.approx(-0.125)
