"""The arithmetic of information estimates: from cross-scores to numbers per reasoning and token.

Legend: **M** reasonings, **N** prompts, **R** tokens of the longest reasoning, **S** statistics,
**C** clusters of prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .cross_scores import CrossScores
from .retrieval import hits

FloatArray64 = NDArray[np.float64]
IntArray64 = NDArray[np.int64]

STATISTICS = (
    "mutual_information",
    "conditional_entropy",
    "marginal_entropy",
    "conditional_entropy_per_token",
    "retrieval_accuracy",
)
"""What gets intervals, in the order of axis S."""


MAX_BLOCK_ENTRIES = 1 << 22
"""Prefix log-probs held at once: 32 MiB."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """One number per reasoning; every statistic is a mean of them, prompts weighing the same."""

    column_M: IntArray64
    weights_M: FloatArray64
    """1 / (N times the reasonings of its prompt); sums to 1."""
    own_M: FloatArray64
    """log p(z|x)."""
    mixture_M: FloatArray64
    """log of the mean of p(z|x_n) over all prompts."""
    values_MS: FloatArray64
    """Their weighted means are the statistics; the ratio's column holds its linearisation."""
    estimate_S: FloatArray64


def terms(sums_MN: FloatArray64, column_M: IntArray64, lengths_M: IntArray64) -> Terms:
    """Terms of sequence log-probs; every prompt has reasonings.

    With a single prompt everything but H(Z|X) is NaN.
    """
    num_prompts = sums_MN.shape[1]
    weights_M = 1.0 / (num_prompts * np.bincount(column_M, minlength=num_prompts)[column_M])
    own_M = sums_MN[np.arange(len(column_M)), column_M]
    mixture_M = log_mean_exp(sums_MN)
    tokens = float(weights_M @ lengths_M)
    rate = float(weights_M @ -own_M) / tokens if tokens > 0 else np.nan
    columns = [
        own_M - mixture_M,
        -own_M,
        -mixture_M,
        rate + (-own_M - rate * lengths_M) / tokens,
        hits(sums_MN, column_M, 1),
    ]
    if num_prompts < 2:
        for place in (0, 2, 4):
            columns[place] = np.full(len(own_M), np.nan)
    values_MS = np.stack(columns, axis=1)
    return Terms(
        column_M=column_M,
        weights_M=weights_M,
        own_M=own_M,
        mixture_M=mixture_M,
        values_MS=values_MS,
        estimate_S=weights_M @ values_MS,
    )


def without_each_cluster(
    sums_MN: FloatArray64, column_M: IntArray64, lengths_M: IntArray64, cluster_N: IntArray64
) -> FloatArray64:
    """Statistics without the prompts and the reasonings of each cluster in turn, (C, S)."""
    out = np.full((int(cluster_N.max()) + 1, len(STATISTICS)), np.nan)
    for cluster in range(len(out)):
        kept_N = cluster_N != cluster
        if kept_N.any():
            kept_M = kept_N[column_M]
            place_N = np.cumsum(kept_N) - 1
            rest = terms(
                sums_MN[np.ix_(kept_M, kept_N)], place_N[column_M[kept_M]], lengths_M[kept_M]
            )
            out[cluster] = rest.estimate_S
    return out


def leave_own_cluster_out(sums_MN: FloatArray64, terms_: Terms, cluster_N: IntArray64) -> float:
    """Mean of log p(z|x) minus the log mixture over prompts of other clusters.

    Bounds the population's I(X;Z) from above: E[-log mean] >= -log E[mean] (Jensen). Infinite where
    no other prompt could have given some reasoning; NaN if all prompts are of one cluster.
    """
    others_MN = cluster_N[terms_.column_M][:, None] != cluster_N
    if not others_MN.any(axis=1).all():
        return float("nan")
    masked_MN = np.where(others_MN, sums_MN, -np.inf)
    rest_M = log_mean_exp(masked_MN, others_MN.sum(axis=1))
    return float(terms_.weights_M @ (terms_.own_M - rest_M))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PrefixTerms:
    """The same on the first tokens only. A finished reasoning keeps its last value."""

    information_MR: FloatArray64
    """log p(z[:t+1] | x) - log of the mixture's probability of it."""
    posterior_MR: FloatArray64
    """p(x | z[:t+1]) of the true prompt."""


def prefix_terms(scores: CrossScores) -> PrefixTerms:
    """Prefix terms of all reasonings, in blocks to bound memory."""
    num_reasonings, num_prompts, longest = scores.logprobs_MNR.shape
    information_MR = np.zeros((num_reasonings, longest))
    inside_MR = np.arange(longest) < scores.lengths_M[:, None]
    block = max(1, MAX_BLOCK_ENTRIES // max(1, num_prompts * longest))
    for start in range(0, num_reasonings, block):
        rows = slice(start, start + block)
        steps = np.where(inside_MR[rows, None], scores.logprobs_MNR[rows], 0.0)
        prefix_mNR = np.cumsum(steps, axis=2, dtype=np.float64)
        own_mR = prefix_mNR[np.arange(len(steps)), scores.column_M[rows]]
        information_MR[rows] = own_mR - log_mean_exp(prefix_mNR)
    return PrefixTerms(
        information_MR=information_MR, posterior_MR=np.exp(information_MR) / num_prompts
    )


def log_mean_exp(values: FloatArray64, counts: IntArray64 | None = None) -> FloatArray64:
    """log of the mean of exp over axis 1; `-inf` entries count as zeros.

    Args:
        counts: what to divide the sum by, in place of the length of axis 1.
    """
    top = values.max(axis=1, keepdims=True)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        out: FloatArray64 = np.log(np.exp(values - top).sum(axis=1)) + top.squeeze(1)
    out -= np.log(values.shape[1] if counts is None else counts)
    return out
