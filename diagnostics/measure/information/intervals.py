"""95 % intervals of information estimates, for the value of the batch's own prompts.

The prompts are given, only the reasonings are random. An estimate is a mean of one number per
reasoning, stratified by prompt; siblings are resampled within their prompt.

They are studentised bootstraps with symmetric quantiles (Hall, The Bootstrap and Edgeworth
Expansion, 1992, section 3.6). docs/information.md has measurements of how often they hold.

Legend: **M** reasonings, **N** prompts, **S** statistics, **B** resamples.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from echoscope.store.records import FloatArray64, IntArray64

LEVEL = 0.95
NUM_RESAMPLES = 200
SPREAD_FLOOR = 0.1
"""Least variance of a resample, as a share of the sample's. Where nearly all values are equal (a
dependence at its ceiling) a resample without the few others has hardly any spread, its t has no
bound, and the interval would be all of [0, ln N]."""


def half_widths(
    values_MS: FloatArray64, column_M: IntArray64, rng: np.random.Generator
) -> FloatArray64:
    """Half widths (S,) around means over prompts of means over their reasonings.

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
    """Mean over strata of their means, and its variance, both (B, S).

    Args:
        moments_BM2S: values and their squares side by side, each stratum centred beforehand.
    """
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
