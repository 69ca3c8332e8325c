"""Does the reasoning depend on the prompt? I(X;Z), H(Z|X) and H(Z) from cross-scores.

X is uniform on the N distinct prompts of a batch, and the policy's own probabilities are known. So
p(z) = (1/N) sum over n of p(z|x_n) is exact, the means below are unbiased for *that batch's* I and
H, and H(Z) = H(Z|X) + I(X;Z) holds to the last digit. For the wider prompt distribution the same
number estimates a lower bound with ceiling ln N (InfoNCE with the exact density: Poole et al. 2019,
arXiv 1905.06922, section 2.2).

All logarithms are natural: nats, per sequence unless a name says per token.

Legend: **M** reasonings, **N** prompts, **R** tokens of the longest reasoning, **S** statistics.

    >>> import numpy as np
    >>> from echoscope.diagnostics.measure.information.estimate import CrossScores, estimate
    >>> log_p = np.log([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])  # 4 reasonings, 2 prompts
    >>> lengths, columns = np.ones(4, dtype=int), np.array([0, 0, 1, 1])
    >>> found = estimate(
    ...     CrossScores(logprobs_MNR=log_p[..., None], lengths_M=lengths, column_M=columns))
    >>> round(found.mutual_information, 3), round(found.dependence, 3)
    (0.47, 0.678)
    >>> alone = estimate(
    ...     CrossScores(logprobs_MNR=log_p[:, :1, None], lengths_M=lengths, column_M=0 * columns))
    >>> alone.mutual_information, alone.problem
    (nan, 'there is one distinct prompt: I(X;Z) needs two')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.special import logsumexp, stdtrit

from echoscope.store.records import FloatArray64, IntArray64

from .cross_scores import CrossScores

NAN = float("nan")
STATISTICS = ("mutual_information", "conditional_entropy", "conditional_entropy_per_token")
"""What gets intervals, in the order of axis S."""
_OWN = ("dependence", "marginal_entropy", "identification_length", "retrieval_p_value")
_OF_SCORES = ("sampling_gap", "num_prompts", "num_reasonings")
"""Attributes of an estimate, and of its scores, that are metrics of the same name."""
PERMUTATIONS = 1000
"""Of the prompts' labels, for the p-value of retrieval."""
MAX_BLOCK_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InformationEstimate:
    """What the cross-scores of one family say. NaN with a `problem` where they cannot say it."""

    scores: CrossScores
    problem: str
    """Why I(X;Z) is not available; empty if it is."""

    mutual_information: float = NAN
    conditional_entropy: float = NAN
    conditional_entropy_per_token: float = NAN
    """Nats of all reasonings over their tokens: a ratio of sums."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """By name of the statistic: low and high end for the batch's own value."""
    retrieval_accuracy: float = NAN
    """Share of reasonings whose own prompt gives them the highest probability; mean over prompts.
    Prompts that tie share: reasoning that no prompt explains better is retrieved at chance."""
    retrieval_p_value: float = NAN
    """When the prompts' labels are permuted, siblings staying together."""

    curve_k: IntArray64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    curve: FloatArray64 = field(default_factory=lambda: np.zeros(0))
    """I(X; first k tokens of Z), a finished reasoning staying as it is."""
    identification_length: float = NAN
    """Tokens after which the mean posterior of the true prompt reaches one half (with two prompts,
    three quarters); NaN if never."""
    token_information: tuple[FloatArray64, ...] = ()
    """Per reasoning and token: log p(token | x, before) - log p(token | mixture, before)."""

    @property
    def ceiling(self) -> float:
        """ln N; NaN for a single prompt."""
        return float(np.log(self.scores.num_prompts)) if self.scores.num_prompts > 1 else NAN

    @property
    def dependence(self) -> float:
        """I(X;Z) / ln N: 0 independent, 1 as dependent as N prompts can show."""
        return self.mutual_information / self.ceiling

    @property
    def marginal_entropy(self) -> float:
        """H(Z)."""
        return self.conditional_entropy + self.mutual_information

    def metrics(self) -> dict[str, float]:
        """`info/<family>/...`: always the same keys, NaN where not available."""
        values = {name: float(getattr(self, name)) for name in (*STATISTICS, *_OWN)}
        values |= {name: float(getattr(self.scores, name)) for name in _OF_SCORES}
        values["retrieval_accuracy@1"] = self.retrieval_accuracy
        values["retrieval_chance@1"] = NAN if self.problem else 1 / self.scores.num_prompts
        for name in STATISTICS:
            values[f"{name}_low"], values[f"{name}_high"] = self.intervals.get(name, (NAN, NAN))
        return {f"info/{self.scores.family}/{name}": value for name, value in values.items()}


def estimate(
    scores: CrossScores, *, num_permutations: int = PERMUTATIONS, seed: int = 0
) -> InformationEstimate:
    """Everything the cross-scores of one family tell.

    Never raises on what the scores hold: with fewer than two distinct prompts, no reasonings, NaN
    log-probs or an impossible own prompt, the estimate says so in `problem` and is NaN. H(Z|X) is
    there for a single prompt too.

    Args:
        seed: of resamples and permutations.
    """
    sums_MN = scores.sums_MN()
    own_M = sums_MN[np.arange(len(sums_MN)), scores.column_M]
    blocking = _blocking_problem(scores, sums_MN, own_M)
    num_prompts, column_M = scores.num_prompts, scores.column_M
    one_prompt = "" if num_prompts > 1 else "there is one distinct prompt: I(X;Z) needs two"
    problem = scores.problem or blocking or one_prompt
    about: dict[str, Any] = {"scores": scores, "problem": problem}
    if blocking:
        return InformationEstimate(**about)
    rng = np.random.default_rng(seed)
    weights_M = 1.0 / (num_prompts * np.bincount(column_M, minlength=num_prompts)[column_M])
    information_M = own_M - log_mean_exp(sums_MN)
    tokens = float(weights_M @ scores.lengths_M)
    rate = float(weights_M @ -own_M) / tokens
    # One number per reasoning, whose mean is the statistic; of the ratio its linearisation.
    per_token_M = rate + (-own_M - rate * scores.lengths_M) / tokens
    values_MS = np.stack([information_M, -own_M, per_token_M], axis=1)
    value_S = weights_M @ values_MS
    half_S = half_widths(values_MS, column_M, rng)
    limits = {"mutual_information": (0.0, float(np.log(num_prompts)))}
    intervals = {}
    for name, value, half in zip(STATISTICS, value_S.tolist(), half_S.tolist(), strict=True):
        low, high = np.clip([value - half, value + half], *limits.get(name, (0.0, np.inf)))
        intervals[name] = (float(low), float(high))
    about |= {"conditional_entropy": value_S[1], "conditional_entropy_per_token": rate}
    if problem:
        del intervals["mutual_information"]
        return InformationEstimate(**about, intervals=intervals)
    retrieval = _retrieval(sums_MN, column_M, num_permutations, rng)
    return InformationEstimate(
        **about,
        **_by_token(scores, weights_M),
        intervals=intervals,
        mutual_information=float(value_S[0]),
        retrieval_accuracy=retrieval[0],
        retrieval_p_value=retrieval[1],
    )


def log_mean_exp(values: FloatArray64) -> FloatArray64:
    """log of the mean of exp over axis 1; `-inf` entries count as zeros."""
    return np.asarray(logsumexp(values, axis=1) - np.log(values.shape[1]))


def _retrieval(
    sums_MN: FloatArray64, column_M: IntArray64, num_permutations: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Accuracy among the N prompts, which all have reasonings, and its p-value."""
    num_prompts = sums_MN.shape[1]
    best_MN = (sums_MN == sums_MN.max(axis=1, keepdims=True)).astype(np.float64)
    best_MN /= best_MN.sum(axis=1, keepdims=True)
    # share_NN[c, n]: how much of the reasonings of prompt c prompt n attracts.
    share_NN = np.zeros((num_prompts, num_prompts))
    np.add.at(share_NN, column_M, best_MN / np.bincount(column_M)[column_M][:, None])
    labels = rng.permuted(np.tile(np.arange(num_prompts), (num_permutations, 1)), axis=1)
    permuted = share_NN[np.arange(num_prompts), labels].mean(axis=1)
    observed = float(np.trace(share_NN)) / num_prompts
    num_as_good = int((permuted >= observed - 1e-12).sum())
    return observed, (1 + num_as_good) / (1 + num_permutations)


def _by_token(scores: CrossScores, weights_M: FloatArray64) -> dict[str, Any]:
    """Curve, identification length and information of each token."""
    information_MR = _prefix_information(scores)
    longest = information_MR.shape[1]
    powers = 2 ** np.arange(longest.bit_length())
    curve_k = np.unique(np.append(powers[powers < longest], longest))
    # Of two prompts chance is one half already: there it takes three quarters.
    threshold = 0.5 if scores.num_prompts > 2 else 0.75
    posterior_R = weights_M @ np.exp(information_MR) / scores.num_prompts
    reached = np.flatnonzero(posterior_R >= threshold)
    steps_MR = np.diff(information_MR, axis=1, prepend=0.0)
    return {
        "curve_k": curve_k,
        "curve": weights_M @ information_MR[:, curve_k - 1],
        "identification_length": float(reached[0] + 1) if len(reached) else NAN,
        "token_information": tuple(
            row[:length].copy() for row, length in zip(steps_MR, scores.lengths_M, strict=True)
        ),
    }


def _prefix_information(scores: CrossScores) -> FloatArray64:
    """(M, R) log p(z[:t+1] | x) less that of the mixture, in blocks to bound memory.

    A finished reasoning keeps its last value.
    """
    num_reasonings, num_prompts, longest = scores.logprobs_MNR.shape
    out_MR = np.zeros((num_reasonings, longest))
    inside_MR = np.arange(longest) < scores.lengths_M[:, None]
    block = max(1, MAX_BLOCK_ENTRIES // max(1, num_prompts * longest))
    for start in range(0, num_reasonings, block):
        rows = slice(start, start + block)
        steps = np.where(inside_MR[rows, None], scores.logprobs_MNR[rows], 0.0)
        prefix_mNR = np.cumsum(steps, axis=2, dtype=np.float64)
        own_mR = prefix_mNR[np.arange(len(steps)), scores.column_M[rows]]
        out_MR[rows] = own_mR - log_mean_exp(prefix_mNR)
    return out_MR


def _blocking_problem(scores: CrossScores, sums_MN: FloatArray64, own_M: FloatArray64) -> str:
    """Why not even H(Z|X) can be had; empty if it can."""
    if scores.num_reasonings == 0:
        return scores.problem or "there are no reasonings to score"
    if not scores.lengths_M.any():
        return f"all {scores.num_reasonings} reasonings are empty"
    num_nan = int(np.isnan(sums_MN).any(axis=1).sum())
    if num_nan:
        return f"{num_nan} of {scores.num_reasonings} reasonings have NaN log-probs"
    impossible = np.flatnonzero(np.isneginf(own_M))
    if len(impossible):
        return f"reasoning {impossible[0]} has probability 0 under the prompt it was sampled from"
    return ""


LEVEL = 0.95
NUM_RESAMPLES = 200
SPREAD_FLOOR = 0.1
"""Least variance of a resample, as a share of the sample's. Where nearly all values are equal (a
dependence at its ceiling) a resample without the few others has hardly any spread, its t has no
bound, and the interval would be all of [0, ln N]."""


def half_widths(
    values_MS: FloatArray64, column_M: IntArray64, rng: np.random.Generator
) -> FloatArray64:
    """Half widths (S,) of 95 % intervals around means over prompts of means over their reasonings.

    They hold for the batch's own prompts: only the reasonings are random, and siblings are
    resampled within their prompt. Studentised bootstraps with symmetric quantiles (Hall, The
    Bootstrap and Edgeworth Expansion, 1992, section 3.6); docs/information.md has their coverage.

    With one reasoning under some prompt siblings cannot tell their spread; the spread over prompts
    is used instead. It holds the differences between prompts too, so such intervals are wide. NaN
    where there is a single prompt then.

    Args:
        values_MS: one number per reasoning and statistic; for a ratio its linearisation.
        column_M: prompt of each reasoning; every prompt from 0 to N - 1 occurs.
    """
    order = np.argsort(column_M, kind="stable")
    values_MS = values_MS[order]
    sizes_N = np.bincount(column_M)
    starts_N = np.cumsum(sizes_N) - sizes_N
    means_NS = np.add.reduceat(values_MS, starts_N) / sizes_N[:, None]
    if (sizes_N < 2).any():
        return _over_prompts(means_NS, rng)
    size_M = np.repeat(sizes_N, sizes_N)
    centred_MS = values_MS - np.repeat(means_NS, sizes_N, axis=0)
    moments_M2S = np.concatenate([centred_MS, centred_MS**2], axis=1)
    offsets_BM = (rng.random((NUM_RESAMPLES, len(size_M))) * size_M).astype(np.int64)
    picks_BM = np.repeat(starts_N, sizes_N) + offsets_BM
    _, variances_1S = _stratified_moments(moments_M2S[None], starts_N, sizes_N)
    means_BS, variances_BS = _stratified_moments(moments_M2S[picks_BM], starts_N, sizes_N)
    freedom = float((sizes_N - 1).sum())
    return _half_widths(means_BS, variances_1S[0], variances_BS, freedom)


def _stratified_moments(
    moments_BM2S: FloatArray64, starts_N: IntArray64, sizes_N: IntArray64
) -> tuple[FloatArray64, FloatArray64]:
    """Mean over strata of their means, and its variance, both (B, S); strata are centred before."""
    sizes_N1 = sizes_N[:, None]
    sums_BN2S = np.add.reduceat(moments_BM2S, starts_N, axis=1) / sizes_N1
    means_BNS, squares_BNS = np.split(sums_BN2S, 2, axis=2)
    variances_BNS = np.maximum(squares_BNS - means_BNS**2, 0.0) / (sizes_N1 - 1)
    return means_BNS.mean(axis=1), variances_BNS.sum(axis=1) / len(sizes_N) ** 2


def _over_prompts(means_NS: FloatArray64, rng: np.random.Generator) -> FloatArray64:
    """Half widths (S,) around the mean of independent values."""
    count, num_statistics = means_NS.shape
    if count < 2:
        return np.full(num_statistics, np.nan)
    resampled_BNS = means_NS[rng.integers(0, count, (NUM_RESAMPLES, count))]
    return _half_widths(
        resampled_BNS.mean(axis=1) - means_NS.mean(axis=0),
        means_NS.var(axis=0, ddof=1) / count,
        resampled_BNS.var(axis=1, ddof=1) / count,
        count - 1.0,
    )


def _half_widths(
    shifts_BS: FloatArray64, variances_S: FloatArray64, variances_BS: FloatArray64, freedom: float
) -> FloatArray64:
    """The level quantile of |t*| over resamples, times the standard error, (S,).

    `shifts_BS` are resampled means less the mean, the variances those of means.
    A sample without any spread has no t; Student's stands in.
    """
    floored_BS = np.maximum(variances_BS, SPREAD_FLOOR * variances_S)
    ratios_BS = np.abs(shifts_BS) / np.sqrt(np.where(floored_BS > 0, floored_BS, np.nan))
    student = float(stdtrit(freedom, 0.5 + LEVEL / 2))
    finite = [column[np.isfinite(column)] for column in ratios_BS.T]
    quantiles_S = np.array([np.quantile(t, LEVEL) if len(t) else student for t in finite])
    half_S: FloatArray64 = quantiles_S * np.sqrt(variances_S)
    return half_S
