"""Can a reasoning be traced to its prompt? Accuracy, chance, and a permutation test.

Legend: **M** reasonings, **N** prompts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echoscope.store.records import FloatArray64, IntArray64

RANKS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """Share of reasonings whose own prompt is among the k that give them the highest probability.

    Prompts that tie share their places: `accuracy` is expected over a random order of equals, so
    that reasoning which no prompt explains better is retrieved at chance.
    """

    accuracy: dict[int, float]
    """By k; mean over prompts of the mean over their reasonings."""
    chance: dict[int, float]
    """min(1, k / N)."""
    p_value: float
    """Of accuracy at 1, when the prompts' labels are permuted, siblings staying together."""


def hits(sums_MN: FloatArray64, column_M: IntArray64, rank: int) -> FloatArray64:
    """Probability that the own prompt is among the first `rank`, ties in random order, (M,)."""
    own_M1 = np.take_along_axis(sums_MN, column_M[:, None], axis=1)
    better_M = (sums_MN > own_M1).sum(axis=1)
    equal_M = (sums_MN == own_M1).sum(axis=1)
    shares: FloatArray64 = np.clip((rank - better_M) / equal_M, 0.0, 1.0)
    return shares


def retrieve(
    sums_MN: FloatArray64, column_M: IntArray64, num_permutations: int, rng: np.random.Generator
) -> Retrieval:
    """Retrieval of every reasoning among the N prompts, which all have reasonings."""
    num_prompts = sums_MN.shape[1]
    counts_N = np.bincount(column_M, minlength=num_prompts)
    weights_M = 1.0 / (num_prompts * counts_N[column_M])
    best_MN = (sums_MN == sums_MN.max(axis=1, keepdims=True)).astype(np.float64)
    best_MN /= best_MN.sum(axis=1, keepdims=True)
    # share_NN[c, n]: how much of the reasonings of prompt c prompt n attracts.
    share_NN = np.zeros((num_prompts, num_prompts))
    np.add.at(share_NN, column_M, best_MN / counts_N[column_M][:, None])
    labels = rng.permuted(np.tile(np.arange(num_prompts), (num_permutations, 1)), axis=1)
    permuted = share_NN[np.arange(num_prompts), labels].mean(axis=1)
    observed = float(np.trace(share_NN)) / num_prompts
    num_as_good = int((permuted >= observed - 1e-12).sum())
    return Retrieval(
        accuracy={k: float(weights_M @ hits(sums_MN, column_M, k)) for k in RANKS},
        chance={k: min(1.0, k / num_prompts) for k in RANKS},
        p_value=(1 + num_as_good) / (1 + num_permutations),
    )


def posterior(sums_MN: FloatArray64, column_M: IntArray64) -> FloatArray64:
    """Mean posterior over prompts of the reasonings of each prompt, (N, N); rows sum to 1.

    Row: the prompt that a reasoning was sampled under; column: the prompt it points to. The
    identity where reasonings name their prompt, 1 / N everywhere where they ignore it.

    >>> posterior(np.log([[0.9, 0.1], [0.5, 0.5]]), np.array([0, 1])).round(2).tolist()
    [[0.9, 0.1], [0.5, 0.5]]
    """
    num_prompts = sums_MN.shape[1]
    shares_MN = np.exp(sums_MN - sums_MN.max(axis=1, keepdims=True))
    shares_MN /= shares_MN.sum(axis=1, keepdims=True)
    out = np.zeros((num_prompts, num_prompts))
    np.add.at(out, column_M, shares_MN / np.bincount(column_M)[column_M][:, None])
    return out
