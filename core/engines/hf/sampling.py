"""From logits and a uniform to a sampled token with its log-prob and entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..base import SamplingParams

MAX_SUPPORT = 4096
"""Most tokens that top-p and min-p leave in where top-k sets no limit; ties may exceed it. The
update needs every one of them, so an unbounded support could fill the memory."""

_EXCLUDED = -1e30
"""Logit of a token that is left out: its probability is 0, and 0 * log-prob is not NaN."""

BELOW_ONE = 1.0 - 1e-12
"""Keeps u * total below the last step of the cumulative distribution in float64."""


class PolicyNumericsError(ArithmeticError):
    """The policy's logits hold NaN or infinity: its weights or activations have blown up."""


def sampling_logprobs(logits_BV: Tensor, params: SamplingParams) -> Tensor:
    """Log-probs of the sampling distribution, float32 (B, V).

    Temperature first, then top-k, then top-p on what is left, then min-p, then renormalised. Tokens
    left out have a log-prob below -1e29. Greedy reports the distribution at temperature 1,
    untruncated.
    """
    logits_BV = logits_BV.float()
    if params.temperature == 0:
        return torch.log_softmax(logits_BV, dim=-1)
    if params.temperature != 1:
        logits_BV = logits_BV / params.temperature
    vocab_size = logits_BV.shape[-1]
    limit = params.top_k or (MAX_SUPPORT if params.truncates(vocab_size) else 0)
    if 0 < limit < vocab_size:
        smallest_B1 = logits_BV.topk(limit, dim=-1).values[:, -1:]
        logits_BV = logits_BV.masked_fill(logits_BV < smallest_B1, _EXCLUDED)
    if params.top_p < 1:
        logits_BV = _keep_top_p(logits_BV, params.top_p)
    if params.min_p > 0:
        border_B1 = logits_BV.max(dim=-1, keepdim=True).values + math.log(params.min_p)
        logits_BV = logits_BV.masked_fill(logits_BV < border_B1, _EXCLUDED)
    return torch.log_softmax(logits_BV, dim=-1)


def _keep_top_p(logits_BV: Tensor, top_p: float) -> Tensor:
    """Exclude all but the fewest likeliest tokens whose probability reaches `top_p`."""
    sorted_BV, order_BV = logits_BV.sort(dim=-1, descending=True, stable=True)
    probs_BV = torch.softmax(sorted_BV, dim=-1)
    # A token stays when the ones before it do not reach top_p yet, so the first always stays.
    before_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64) - probs_BV
    excluded_BV = torch.zeros_like(logits_BV, dtype=torch.bool)
    excluded_BV.scatter_(1, order_BV, before_BV >= top_p)
    return logits_BV.masked_fill(excluded_BV, _EXCLUDED)


class Drawn(NamedTuple):
    """One sampled token per row."""

    tokens: Tensor  # (B,) long
    logprobs: Tensor  # (B,) float32
    entropies: Tensor  # (B,) float32, nats
    support: Tensor | None
    """(B, V) bool, the tokens left in; None unless `records_support` and some may be left out."""


def sample_tokens(logits_BV: Tensor, params: SamplingParams, uniforms_B: Tensor) -> Drawn:
    """Sample one token per row by inverting the cumulative distribution at its uniform, float64.

    A row whose logits hold NaN or infinity has a non-finite entropy (and some token); the caller
    checks.
    """
    logprobs_BV = sampling_logprobs(logits_BV, params)
    probs_BV = logprobs_BV.exp()
    entropies_B = -(probs_BV * logprobs_BV).sum(dim=-1)
    if params.temperature == 0:
        tokens_B1 = logits_BV.argmax(dim=-1, keepdim=True)
    else:
        cumulative_BV = probs_BV.cumsum(dim=-1, dtype=torch.float64)
        target_B1 = uniforms_B.unsqueeze(1) * cumulative_BV[:, -1:]
        tokens_B1 = torch.searchsorted(cumulative_BV, target_B1, right=True)
        # Only NaN can lead outside; an index out of range would then hide the real error.
        tokens_B1 = tokens_B1.clamp_(max=logprobs_BV.shape[-1] - 1)
    support_BV = None
    if params.records_support and params.truncates(logits_BV.shape[-1]):
        support_BV = logprobs_BV > 0.5 * _EXCLUDED
    logprobs_B = logprobs_BV.gather(1, tokens_B1).squeeze(1)
    return Drawn(tokens_B1.squeeze(1), logprobs_B, entropies_B, support_BV)


def numerics_error(
    entropies_TB: NDArray[np.float32], starts: Sequence[int], policy_version: int
) -> PolicyNumericsError:
    """What is wrong where some entropies are not finite: then the logits were not.

    Args:
        starts: per row, the place of its first token here in its response.
    """
    bad_TB = ~np.isfinite(entropies_TB)
    offset = int(bad_TB.any(axis=1).argmax())
    broken = np.flatnonzero(bad_TB[offset])
    return PolicyNumericsError(
        f"the policy's logits hold NaN or infinity for {len(broken)} of {entropies_TB.shape[1]} "
        f"rows at response token {starts[int(broken[0])] + offset} (policy version "
        f"{policy_version}): its weights or activations have blown up; go back to an earlier "
        f"checkpoint with a smaller optim.lr, or check the model's dtype"
    )
