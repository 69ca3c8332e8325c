"""A policy so small that every sequence can be written down: gradients without sampling error.

Legend: **N** sequences, **T** tokens of each, **V** vocabulary, **C** contexts (all prefixes).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from echoscope.core.config.loss import LossConfig
from echoscope.core.config.settings import OffPolicyConfig
from echoscope.core.update.batch import PolicyOutputs, TokenBatch
from echoscope.core.update.losses import Denominators, compute_loss


@dataclass(frozen=True, kw_only=True)
class World:
    """All sequences, and what each one earns."""

    tokens_NT: Tensor
    context_NT: Tensor  # index of the prefix before each token
    reward_N: Tensor
    num_contexts: int
    vocabulary: int

    @classmethod
    def of(cls, vocabulary: int, length: int, seed: int) -> World:
        """Rewards are normal numbers, one for each sequence."""
        sequences = list(itertools.product(range(vocabulary), repeat=length))
        prefixes: dict[tuple[int, ...], int] = {}
        for sequence in sequences:
            for t in range(length):
                prefixes.setdefault(sequence[:t], len(prefixes))
        random = torch.Generator().manual_seed(seed)
        return cls(
            tokens_NT=torch.tensor(sequences),
            context_NT=torch.tensor([[prefixes[s[:t]] for t in range(length)] for s in sequences]),
            reward_N=torch.randn(len(sequences), generator=random, dtype=torch.float64),
            num_contexts=len(prefixes),
            vocabulary=vocabulary,
        )

    def logprobs_NT(self, logits_CV: Tensor) -> Tensor:
        """Of every sequence's tokens under a table of logits."""
        return logits_CV.log_softmax(1)[self.context_NT, self.tokens_NT]

    def policy_gradient(self, logits_CV: Tensor) -> Tensor:
        """(C, V) sum over sequences of pi(y) A(y) grad log pi(y): what no sampler can beat."""
        logits = logits_CV.detach().requires_grad_()
        logprob_N = self.logprobs_NT(logits).sum(1)
        advantage_N = self.advantages_N(logits_CV)
        (gradient,) = torch.autograd.grad(
            (logprob_N.exp().detach() * advantage_N * logprob_N).sum(), logits
        )
        return gradient

    def advantages_N(self, logits_CV: Tensor) -> Tensor:
        """Reward less its mean under the policy."""
        probability_N = self.logprobs_NT(logits_CV.detach()).sum(1).exp()
        return self.reward_N - (probability_N * self.reward_N).sum()

    def update_gradient(
        self,
        logits_CV: Tensor,
        *,
        sampled_NT: Tensor,
        recorded_NT: Tensor,
        loss: LossConfig,
        off_policy: OffPolicyConfig,
    ) -> Tensor:
        """(C, V) expectation of the update's own gradient over what the engine samples.

        A surrogate is linear in a positive factor of its advantage, so the engine's probability of
        a sequence can stand in its advantage.

        Args:
            sampled_NT: Log-probs by which the engine samples.
            recorded_NT: Log-probs that it records.
        """
        logits = logits_CV.detach().requires_grad_()
        logprobs = self.logprobs_NT(logits)
        num, length = logprobs.shape
        probability_N = sampled_NT.sum(1).exp()
        advantage_N = num * probability_N * self.advantages_N(logits_CV)
        zeros = torch.zeros(num, length, dtype=torch.int64)
        batch = TokenBatch(
            input_ids=zeros,
            attention_mask=zeros == 0,
            loss_mask=zeros == 0,
            turn_index=zeros,
            behaviour_logprobs=recorded_NT,
            token_rewards=torch.zeros_like(logprobs),
            trajectory_index=torch.arange(num),
            group_index=torch.arange(num),
            trajectory_num_tokens=torch.full((num,), length),
            advantages=advantage_N[:, None].expand(num, length),
        )
        outputs = PolicyOutputs(logprobs=logprobs, entropies=torch.zeros_like(logprobs))
        terms = compute_loss(outputs, batch, loss, Denominators.of(batch, length), off_policy)
        (gradient,) = torch.autograd.grad(-terms.total, logits)
        return gradient


def bias(gradient: Tensor, right: Tensor) -> float:
    """Distance from the right gradient, over its length."""
    return float((gradient - right).norm() / right.norm())


def cosine(gradient: Tensor, right: Tensor) -> float:
    return float((gradient * right).sum() / (gradient.norm() * right.norm()))
