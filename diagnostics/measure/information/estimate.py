"""Does the reasoning depend on the prompt? I(X;Z), H(Z|X) and H(Z) from cross-scores.

X is uniform on the N distinct prompts of a batch, and the policy's own probabilities are known. So
p(z) = (1/N) sum over n of p(z|x_n) is exact, the means below are unbiased for *that batch's* I and
H, and H(Z) = H(Z|X) + I(X;Z) holds to the last digit. For the wider prompt distribution the same
number estimates a lower bound with ceiling ln N (InfoNCE with the exact density: Poole et al. 2019,
arXiv 1905.06922, section 2.2), and the leave-one-out mixture gives an upper bound.

All logarithms are natural: nats, per sequence unless a name says per token.

Legend: **M** reasonings, **N** prompts, **R** tokens of the longest reasoning, **S** statistics,
**C** clusters of prompts.

    >>> import numpy as np
    >>> from echoscope.diagnostics.measure.information.estimate import CrossScores, estimate
    >>> log_p = np.log([[0.8, 0.2], [0.8, 0.2], [0.2, 0.8], [0.2, 0.8]])  # 4 reasonings, 2 prompts
    >>> found = estimate(CrossScores.of_sequences(log_p, column_M=[0, 0, 1, 1]))
    >>> round(found.mutual_information, 3), round(found.dependence, 3)
    (0.47, 0.678)
    >>> round(found.marginal_entropy - found.conditional_entropy - found.mutual_information, 12)
    0.0
    >>> alone = estimate(CrossScores.of_sequences(log_p[:, :1], column_M=[0, 0, 0, 0]))
    >>> alone.mutual_information, alone.problem
    (nan, 'there is one distinct prompt: I(X;Z) needs two')
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray64, IntArray64

from .cross_scores import CrossScores, ScoringCost
from .intervals import Interval, cluster_half_widths, pseudo_values, sibling_half_widths
from .retrieval import RANKS, Retrieval, hits, posterior, retrieve

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


NAN = float("nan")
SATURATION = 0.9
"""Share of ln N above which a batch cannot tell more dependence from less."""

CURVE_METRICS = (1, 4, 16, 64)
"""Numbers of tokens for which the curve is also a metric."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The part of an estimate that some of the reasonings contribute, under the same mixture."""

    mutual_information: float
    conditional_entropy: float
    num_reasonings: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InformationEstimate:
    """What the cross-scores of one family say. NaN with a `problem` where they cannot say it."""

    family: str
    num_prompts: int
    num_reasonings: int
    num_tokens: int
    truncated_frac: float
    sampling_gap: float
    """Distance of the scores from those recorded at sampling, nats per token."""
    problem: str
    """Why I(X;Z) is not available; empty if it is."""
    caveats: tuple[str, ...]
    cost: ScoringCost | None

    mutual_information: float = NAN
    conditional_entropy: float = NAN
    marginal_entropy: float = NAN
    conditional_entropy_per_token: float = NAN
    """Nats of all reasonings over their tokens: a ratio of sums."""
    retrieval: Retrieval | None = None
    batch: Mapping[str, Interval] = field(default_factory=dict)
    """By name of the statistic: for the batch's own value."""
    population: Mapping[str, Interval] = field(default_factory=dict)
    """... and for its expectation over batches of N prompts."""

    curve_k: IntArray64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    curve: FloatArray64 = field(default_factory=lambda: np.zeros(0))
    """I(X; first k tokens of Z), a finished reasoning staying as it is."""
    identification_length: float = NAN
    """Tokens after which the mean posterior of the true prompt reaches one half (with two prompts,
    three quarters); NaN if never."""
    token_information: tuple[FloatArray64, ...] = ()
    """Per reasoning and token: log p(token | x, before) - log p(token | mixture, before)."""
    source_M: tuple[tuple[str, int], ...] = ()
    """Trajectory id and turn index of each reasoning, where they are known."""
    column_M: IntArray64 = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """The prompt of each reasoning."""
    posterior_NN: FloatArray64 = field(default_factory=lambda: np.zeros((0, 0)))
    """Row: own prompt; column: the prompt that its reasonings point to."""
    per_prompt: tuple[Breakdown, ...] = ()
    per_turn: Mapping[int, Breakdown] = field(default_factory=dict)
    per_env: Mapping[str, Breakdown] = field(default_factory=dict)

    @property
    def is_available(self) -> bool:
        return not self.problem

    @property
    def ceiling(self) -> float:
        """ln N; NaN for a single prompt."""
        return float(np.log(self.num_prompts)) if self.num_prompts > 1 else NAN

    @property
    def dependence(self) -> float:
        """I(X;Z) / ln N: 0 independent, 1 as dependent as N prompts can show."""
        return self.mutual_information / self.ceiling

    @property
    def is_saturated(self) -> bool:
        """So close to ln N that more dependence would not show; False where not available."""
        return self.dependence > SATURATION

    def metrics(self) -> dict[str, float]:
        """`info/<family>/...`: always the same keys, NaN where not available."""
        values: dict[str, float] = {
            "mutual_information": self.mutual_information,
            "dependence": self.dependence,
            "conditional_entropy": self.conditional_entropy,
            "conditional_entropy_per_token": self.conditional_entropy_per_token,
            "marginal_entropy": self.marginal_entropy,
            "identification_length": self.identification_length,
            "retrieval_p_value": self.retrieval.p_value if self.retrieval else NAN,
            "saturated": float(self.is_saturated) if self.is_available else NAN,
            "truncated_frac": self.truncated_frac,
            "sampling_gap": self.sampling_gap,
            "num_prompts": float(self.num_prompts),
            "num_reasonings": float(self.num_reasonings),
            "num_tokens": float(self.num_tokens),
        }
        for rank in RANKS:
            known = self.retrieval
            values[f"retrieval_accuracy@{rank}"] = known.accuracy[rank] if known else NAN
            values[f"retrieval_chance@{rank}"] = known.chance[rank] if known else NAN
        for k in CURVE_METRICS:
            values[f"mutual_information_first@{k}"] = self._curve_at(k)
        for name in STATISTICS:
            for kind, intervals in (("", self.batch), ("_population", self.population)):
                interval = intervals.get(name)
                values[f"{name}{kind}_low"] = interval.low if interval else NAN
                values[f"{name}{kind}_high"] = interval.high if interval else NAN
        return {f"info/{self.family}/{name}": value for name, value in values.items()}

    def _curve_at(self, k: int) -> float:
        """The curve at k tokens; behind its end it is flat."""
        places = np.flatnonzero(self.curve_k >= k)
        if len(places):
            return float(self.curve[places[0]])
        return float(self.curve[-1]) if len(self.curve) else NAN


def estimate(
    scores: CrossScores, *, level: float = 0.95, num_permutations: int = 1000, seed: int = 0
) -> InformationEstimate:
    """Everything the cross-scores of one family tell.

    Never raises on what the scores hold: with fewer than two distinct prompts, no reasonings, NaN
    log-probs or an impossible own prompt, the estimate says so in `problem` and is NaN. H(Z|X) is
    there for a single prompt too.

    Args:
        scores: of distinct prompts.
        level: of the intervals.
        num_permutations: of the prompts' labels, for the p-value of retrieval.
        seed: of resamples and permutations.
    """
    blocking = _blocking_problem(scores)
    base = InformationEstimate(
        family=scores.family,
        num_prompts=scores.num_prompts,
        num_reasonings=scores.num_reasonings,
        num_tokens=int(scores.lengths_M.sum()),
        truncated_frac=_mean(scores.truncated_M),
        sampling_gap=scores.sampling_gap,
        problem=scores.problem or blocking or _too_few_prompts(scores),
        caveats=scores.caveats,
        cost=scores.cost,
        source_M=scores.source_M or (),
        column_M=scores.column_M,
    )
    if blocking:
        return base
    rng = np.random.default_rng(seed)
    sums_MN = scores.sums_MN()
    found = terms(sums_MN, scores.column_M, scores.lengths_M)
    value = dict(zip(STATISTICS, found.estimate_S.tolist(), strict=True))
    batch, population = _intervals(scores, sums_MN, found, level, rng)
    entropies = replace(
        base,
        conditional_entropy=value["conditional_entropy"],
        conditional_entropy_per_token=value["conditional_entropy_per_token"],
        batch=batch,
        population=population,
    )
    if base.problem:
        return entropies
    return replace(
        entropies,
        mutual_information=value["mutual_information"],
        marginal_entropy=value["marginal_entropy"],
        retrieval=retrieve(sums_MN, scores.column_M, num_permutations, rng),
        posterior_NN=posterior(sums_MN, scores.column_M),
        **_by_token(scores, found),
        **_broken_down(scores, found),
    )


def _intervals(
    scores: CrossScores,
    sums_MN: FloatArray64,
    found: Terms,
    level: float,
    rng: np.random.Generator,
) -> tuple[dict[str, Interval], dict[str, Interval]]:
    """Of the batch's own values, and of the prompt distribution, by statistic."""
    without_CS = without_each_cluster(sums_MN, scores.column_M, scores.lengths_M, scores.clusters_N)
    pseudo_CS = pseudo_values(found.estimate_S, without_CS)
    batch_S = sibling_half_widths(found.values_MS, scores.column_M, level=level, rng=rng)
    population_S = cluster_half_widths(pseudo_CS, level=level, rng=rng)
    ceiling = float(np.log(scores.num_prompts))
    bounds = {"mutual_information": (0.0, ceiling), "retrieval_accuracy": (0.0, 1.0)}
    batch, population = {}, {}
    for place, name in enumerate(STATISTICS):
        value, limits = float(found.estimate_S[place]), bounds.get(name, (0.0, np.inf))
        batch[name] = Interval.around(value, float(batch_S[place]), level, "batch", limits)
        population[name] = Interval.around(
            value, float(population_S[place]), level, "prompt distribution", limits
        )
    return batch, population


def _by_token(scores: CrossScores, found: Terms) -> dict[str, Any]:
    """Curve, identification length and information of each token."""
    prefix = prefix_terms(scores)
    longest = prefix.information_MR.shape[1]
    powers = 2 ** np.arange(longest.bit_length())
    curve_k = np.unique(np.append(powers[powers < longest], longest))
    # Of two prompts chance is one half already: there it takes three quarters.
    threshold = 0.5 if scores.num_prompts > 2 else 0.75
    reached = np.flatnonzero(found.weights_M @ prefix.posterior_MR >= threshold)
    steps_MR = np.diff(prefix.information_MR, axis=1, prepend=0.0)
    return {
        "curve_k": curve_k,
        "curve": found.weights_M @ prefix.information_MR[:, curve_k - 1],
        "identification_length": float(reached[0] + 1) if len(reached) else NAN,
        "token_information": tuple(
            row[:length].copy() for row, length in zip(steps_MR, scores.lengths_M, strict=True)
        ),
    }


def _broken_down(scores: CrossScores, found: Terms) -> dict[str, Any]:
    """The same estimate over the reasonings of each prompt, turn and environment."""
    information_M = found.own_M - found.mixture_M

    def part(rows_M: NDArray[np.bool_]) -> Breakdown:
        weights = found.weights_M[rows_M] / found.weights_M[rows_M].sum()
        return Breakdown(
            mutual_information=float(weights @ information_M[rows_M]),
            conditional_entropy=float(weights @ -found.own_M[rows_M]),
            num_reasonings=int(rows_M.sum()),
        )

    column_M, turn_M = scores.column_M, scores.turn_M
    turns = [] if turn_M is None else np.unique(turn_M).tolist()
    env_M = None if scores.env_N is None else np.array(scores.env_N)[column_M]
    envs = [] if env_M is None else np.unique(env_M).tolist()
    return {
        "per_prompt": tuple(part(column_M == n) for n in range(scores.num_prompts)),
        "per_turn": {turn: part(turn_M == turn) for turn in turns},
        "per_env": {env: part(env_M == env) for env in envs},
    }


def _blocking_problem(scores: CrossScores) -> str:
    """Why not even H(Z|X) can be had; empty if it can."""
    if scores.num_reasonings == 0:
        return scores.problem or "there are no reasonings to score"
    if not scores.lengths_M.any():
        return f"all {scores.num_reasonings} reasonings are empty"
    missing = np.flatnonzero(np.bincount(scores.column_M, minlength=scores.num_prompts) == 0)
    if len(missing):
        return f"prompt {missing[0]} has no reasoning, so the prompts do not count the same"
    sums_MN = scores.sums_MN()
    num_nan = int(np.isnan(sums_MN).any(axis=1).sum())
    if num_nan:
        return f"{num_nan} of {scores.num_reasonings} reasonings have NaN log-probs"
    own_M = sums_MN[np.arange(len(sums_MN)), scores.column_M]
    if np.isneginf(own_M).any():
        m = int(np.flatnonzero(np.isneginf(own_M))[0])
        return f"reasoning {m} has probability 0 under the prompt it was sampled from"
    return ""


def _too_few_prompts(scores: CrossScores) -> str:
    return "" if scores.num_prompts > 1 else "there is one distinct prompt: I(X;Z) needs two"


def _mean(values: NDArray[np.bool_] | None) -> float:
    return float(values.mean()) if values is not None and len(values) else NAN
