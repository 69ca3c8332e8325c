"""Does a reasoning tell which prompt it answers? Retrieval and a bound on I(X;Z), from text alone.

Legend: **N** prompts, **n** reasonings; `prompt_n` holds the prompt index of each, `similarity_nn`
the cosine similarity of every two.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from echoscope.store.records import FloatArray64, IntArray64

_TIE = 1e-9
"""Similarities this close are equal: neither neighbour is nearer."""

_MAX_ELEMENTS = 1 << 24
"""Label comparisons held at once."""

_SHARPNESS = np.array([0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
_DOUBT = np.array([0.002, 0.01, 0.05, 0.2, 0.5, 1.0])
"""Shares of the uniform distribution mixed into a prediction, so that no surprise is infinite."""


class TextRetrieval(NamedTuple):
    """How often the nearest other reasoning answers the same prompt."""

    accuracy: float
    chance: float
    """Its expectation when reasonings do not depend on their prompts."""
    p_value: float
    """Share of label shuffles that do at least as well, the true labels counted as one."""


def retrieve(
    similarity_nn: FloatArray64,
    prompt_n: IntArray64,
    rng: np.random.Generator,
    *,
    permutations: int,
) -> TextRetrieval:
    """Leave-one-out nearest neighbour. Equally near neighbours share the credit.

    With M reasonings of each of N prompts, chance is (M - 1) / (N M - 1), also when all texts are
    equal. At least two reasonings are needed.
    """
    size = len(prompt_n)
    nearness = similarity_nn.copy()
    np.fill_diagonal(nearness, -np.inf)
    nearest = nearness >= nearness.max(axis=1, keepdims=True) - _TIE
    rows, columns = np.nonzero(nearest)
    credit = 1.0 / nearest.sum(axis=1)[rows] / size
    shuffled = rng.permuted(np.tile(prompt_n, (permutations, 1)), axis=1)
    labels = np.concatenate([prompt_n[None], shuffled])  # the true labels first
    step = max(1, _MAX_ELEMENTS // len(rows))
    parts = [labels[k : k + step] for k in range(0, len(labels), step)]
    accuracies = [(part[:, rows] == part[:, columns]) @ credit for part in parts]
    observed, *by_luck = np.concatenate(accuracies).tolist()
    as_good = sum(value >= observed - 1e-12 for value in by_luck)
    same = np.bincount(prompt_n)
    return TextRetrieval(
        accuracy=observed,
        chance=float((same * (same - 1)).sum() / (size * (size - 1))),
        p_value=(1 + as_good) / (1 + permutations),
    )


def dependence(similarity_nn: FloatArray64, prompt_n: IntArray64, *, max_folds: int = 4) -> float:
    """A lower bound on I(X;Z) as a share of its ceiling ln N, at least 0.

    The bound is that of a classifier, on texts that it has not seen: ln N less its cross-entropy,
    ln N - E[-log q(prompt given text)] <= I(X;Z) for any classifier q (Barber, Agakov 2003).

    q is a kernel classifier over the similarities, q(c) ~ mean over the texts j of prompt c of
    exp(s k(z, j)), mixed with the uniform distribution. Sharpness s and mixture are those with the
    best leave-one-out likelihood inside the training folds, so that held-out texts choose nothing.
    It needs the same number M >= 3 of reasonings of each of N >= 2 prompts: one to test on, and two
    to fit on so that one of them can be left out.
    """
    num_prompts = int(prompt_n.max()) + 1
    num_siblings = len(prompt_n) // num_prompts
    fold_n = _position_in_prompt(prompt_n) % min(max_folds, num_siblings)
    log_q_n = np.zeros(len(prompt_n))
    for fold in np.unique(fold_n):
        test, train = np.flatnonzero(fold_n == fold), np.flatnonzero(fold_n != fold)
        within = similarity_nn[np.ix_(train, train)]
        fitted = _log_scores(within, prompt_n[train], prompt_n[train], leave_one_out=True)
        sharpness, doubt = np.unravel_index(fitted.mean(axis=2).argmax(), fitted.shape[:2])
        held_out = _log_scores(similarity_nn[np.ix_(test, train)], prompt_n[train], prompt_n[test])
        log_q_n[test] = held_out[sharpness, doubt]
    ceiling = math.log(num_prompts)
    return max(0.0, ceiling + float(log_q_n.mean())) / ceiling


def _log_scores(
    similarity_ab: FloatArray64,
    train_b: IntArray64,
    truth_a: IntArray64,
    *,
    leave_one_out: bool = False,
) -> FloatArray64:
    """(sharpness, doubt, a) log q of the true prompt of each of `a` texts, from `b` known ones."""
    num_prompts = int(train_b.max()) + 1
    one_hot_bN = np.eye(num_prompts)[train_b]
    weights = np.exp(_SHARPNESS[:, None, None] * (similarity_ab - 1.0)[None])
    count_aN = np.broadcast_to(one_hot_bN.sum(0), (len(truth_a), num_prompts))
    if leave_one_out:
        diagonal = np.arange(len(truth_a))
        weights[:, diagonal, diagonal] = 0.0
        count_aN = count_aN - one_hot_bN
    mass = weights @ one_hot_bN / count_aN
    posterior = mass / mass.sum(axis=-1, keepdims=True)
    true_q = posterior[:, np.arange(len(truth_a)), truth_a]
    mixed = (1 - _DOUBT)[None, :, None] * true_q[:, None, :] + _DOUBT[None, :, None] / num_prompts
    return np.asarray(np.log(mixed))


def _position_in_prompt(prompt_n: IntArray64) -> IntArray64:
    """0, 1, 2, ... within each prompt, in order."""
    out = np.zeros(len(prompt_n), dtype=np.int64)
    for prompt in np.unique(prompt_n):
        members = np.flatnonzero(prompt_n == prompt)
        out[members] = np.arange(len(members))
    return out
