"""RAGEN's collapse metrics by its own formulas: its users' dashboards and numbers carry over.

What it computes differs from `estimate.py` on purpose, and so do the numbers: its `mi_estimate`
mixes length-normalised likelihoods, and reasonings that were never closed are left out.
docs/information.md compares both.

Kept from its code: the formulas, the constants and the names. Not kept: it tokenises the reasoning
again and strips it; here the sampled ids between the tags are scored. Its sample is that of the
family `first_turn`, so prompts which several groups share are one column.

Legend: **S** rows (reasonings), **N** columns (prompts).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from echoscope.store.records import FloatArray64, IntArray64, Trajectory

from .cross_scores import CrossScores
from .estimate import log_mean_exp
from .pairs import inner_span

FAMILY = "collapse_first_turn_sample"
STD_EPS = 1e-3
EMA_DECAY = 0.9
RANKS = (1, 2, 4, 8)


def ragen_metrics(
    scores: CrossScores, previous: Mapping[str, float] | None = None
) -> dict[str, float]:
    """`collapse_first_turn_sample/mi_estimate` and the rest, of scores of the first turn.

    Rows without a closed reasoning with words are left out, and columns without rows. Of the others
    only tokens between the tags count. As in RAGEN there are no metrics with fewer than two
    columns; NaN log-probs give NaN.

    Args:
        previous: what this function returned at the measurement before, for the moving averages.
    """
    scores = _valid(scores)
    if scores.num_prompts < 2 or scores.inner_M2 is None:
        return {}
    lengths_S = scores.inner_M2[:, 1] - scores.inner_M2[:, 0]
    sums_SN = scores.sums_within(scores.inner_M2)
    means_SN = sums_SN / lengths_S[:, None]
    out = {"mi_upper_bound": float(np.log(scores.num_prompts))}
    for suffix, values_SN in (("", means_SN), ("_seq", sums_SN)):
        out |= _information(values_SN, scores.column_M, suffix, previous or {})
    out |= _retrieval(means_SN, scores.column_M)
    return {f"{FAMILY}/{name}": value for name, value in out.items()}


def thinking_rates(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """`collapse/...`: how many turns have a closed reasoning with something in it."""
    firsts = [t.turns[0] for t in trajectories if t.turns]
    turns = [turn for t in trajectories for turn in t.turns]
    num_first = sum(inner_span(turn) is not None for turn in firsts)
    num_all = sum(inner_span(turn) is not None for turn in turns)
    return {
        "collapse/valid_thinking_rate": num_all / len(turns) if turns else float("nan"),
        "collapse/first_turn_num_total": float(len(firsts)),
        "collapse/first_turn_num_valid": float(num_first),
        "collapse/first_turn_valid_rate": num_first / len(firsts) if firsts else float("nan"),
    }


def _valid(scores: CrossScores) -> CrossScores:
    inner_M2 = scores.inner_M2
    if inner_M2 is None or scores.num_reasonings == 0:
        return scores
    kept_M = inner_M2[:, 1] > inner_M2[:, 0]
    kept_N = np.bincount(scores.column_M[kept_M], minlength=scores.num_prompts) > 0
    place_N = np.cumsum(kept_N) - 1
    return replace(
        scores,
        logprobs_MNR=scores.logprobs_MNR[np.ix_(kept_M, kept_N)],
        lengths_M=scores.lengths_M[kept_M],
        column_M=place_N[scores.column_M[kept_M]],
        inner_M2=inner_M2[kept_M],
    )


def _information(
    values_SN: FloatArray64, column_S: IntArray64, suffix: str, previous: Mapping[str, float]
) -> dict[str, float]:
    """Of per-token or per-sequence scores; the mixture holds the own column.

    One z-score is against the moving average of the marginal's spread; its first value starts it.
    """
    matched_S = values_SN[np.arange(len(column_S)), column_S]
    marginal_S = log_mean_exp(values_SN)
    information = float((matched_S - marginal_S).mean())
    spread = float(marginal_S.std())
    before = previous.get(f"{FAMILY}/marginal_std_ema{suffix}")
    average = spread if before is None else EMA_DECAY * before + (1 - EMA_DECAY) * spread
    out = {
        f"mi{suffix}_estimate": information,
        f"conditional_entropy{suffix}_est": -float(matched_S.mean()),
        f"reasoning_entropy{suffix}_est": -float(marginal_S.mean()),
        f"marginal_std{suffix}": spread,
        f"mi_zscore{suffix}": information / (spread + STD_EPS),
        f"marginal_std_ema{suffix}": average,
        f"mi_zscore_ema{suffix}": information / (average + STD_EPS),
    }
    if not suffix:
        out["matched_log_prob_mean"] = float(matched_S.mean())
        out["marginal_log_prob_mean"] = float(marginal_S.mean())
    return out


def _retrieval(means_SN: FloatArray64, column_S: IntArray64) -> dict[str, float]:
    """By length-normalised scores; of equal ones the first column comes first."""
    num_columns = means_SN.shape[1]
    order_SN = np.argsort(-means_SN, axis=1, kind="stable")
    place_S = (order_SN == column_S[:, None]).argmax(axis=1)
    out = {}
    for rank in RANKS:
        effective = min(rank, num_columns)
        accuracy = float((place_S < effective).mean())
        chance = min(1.0, effective / num_columns)
        name = "" if rank == 1 else f"@{rank}"
        out[f"retrieval_accuracy{name}"] = accuracy
        out[f"retrieval_chance_level{name}"] = chance
        out[f"retrieval_above_chance{name}"] = accuracy - chance
    return out
