"""The log-probability of every reasoning's tokens under every prompt: what all estimates read.

Each prompt is forwarded once. That takes sum over n of (|x_n| + M R) token-forwards, where one pass
per pair takes sum over n of M (|x_n| + R). What forwards them is a `Scorer`; `scoring.py` has one
over a language model.

Legend: **M** scored reasonings, **N** distinct prompts, **R** tokens of the longest reasoning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echoscope.store.records import BoolArray, FloatArray, FloatArray64, IntArray, IntArray64

from .pairs import Draw

MAX_SAMPLING_GAP = 0.02
"""Nats per token that rounding and another engine's kernels may explain."""


class ScoringError(ValueError):
    """A model or a prompt cannot be scored this way. The message names the way out."""


@dataclass(slots=True)
class Tally:
    """Token-forwards of a scorer so far."""

    num_tokens: int = 0
    """Padding included."""
    num_padding: int = 0


class Scorer(Protocol):
    """Scores continuations of prompts that are forwarded once."""

    tally: Tally

    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """Per-token log-probs of `continuations[n]` after `prompts[n]`, each as long as it is.

        Prompts have at least one token. Where all have the same continuations, pass the same
        object for each: what is prepared for it is prepared once.
        """


def cross_score(
    scorer: Scorer,
    prompts: Sequence[IntArray],
    reasonings: Sequence[IntArray],
    column_M: Sequence[int] | NDArray[np.int64],
) -> CrossScores:
    """Score every reasoning under every prompt.

    Equal reasonings and equal prompts are forwarded once each.

    Args:
        prompts: N token id arrays.
        reasonings: M token id arrays, closing tags included.
        column_M: index of the prompt that each reasoning was sampled under.

    Raises:
        ScoringError: a prompt is empty, or the model cannot take a row that long.
    """
    started = time.perf_counter()
    before = replace(scorer.tally)
    unique, place_M = _distinct(reasonings)
    unique_prompts, place_N = _distinct(prompts)
    longest = max((len(z) for z in unique), default=0)
    scores = np.zeros((len(unique), len(unique_prompts), longest), dtype=np.float32)
    filled = [m for m, z in enumerate(unique) if len(z)]
    if any(len(prompt) == 0 for prompt in unique_prompts):
        raise ScoringError("a prompt is empty: there is nothing to predict a first token from")
    if filled:
        asked = [unique[m] for m in filled]
        found = scorer.score(unique_prompts, [asked] * len(unique_prompts))
        for n, rows in enumerate(found):
            for m, row in zip(filled, rows, strict=True):
                scores[m, n, : len(row)] = row
    num_naive = sum(len(reasonings) * (len(x) + longest) for x in prompts)
    return CrossScores(
        logprobs_MNR=scores[np.ix_(place_M, place_N)],
        lengths_M=np.array([len(z) for z in reasonings], dtype=np.int64),
        column_M=np.asarray(column_M, dtype=np.int64),
        cost=ScoringCost(
            num_token_forwards=scorer.tally.num_tokens - before.num_tokens,
            num_padding=scorer.tally.num_padding - before.num_padding,
            num_naive=num_naive,
            seconds=time.perf_counter() - started,
        ),
    )


def score_draw(
    scorer: Scorer, draw: Draw, *, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> CrossScores:
    """Cross-score a drawn family and keep what is known of its pairs.

    A draw without pairs gives scores without content that say why; nothing is forwarded. The own
    column is compared with the log-probs recorded at sampling: estimates are unbiased only where
    both are the same distribution.

    Args:
        top_k: of the sampling; 0 if not cut.
        top_p: of the sampling.
        min_p: of the sampling; 0 if not cut.

    Raises:
        ScoringError: as `cross_score`.
    """
    if draw.num_reasonings == 0:
        return CrossScores.missing(draw.problem, family=draw.family)
    scores = cross_score(scorer, draw.prompts, draw.reasonings, draw.column_M)
    gap = _sampling_gap(scores, draw)
    return replace(
        scores,
        cluster_N=draw.cluster_N,
        env_N=draw.env_N,
        turn_M=draw.turn_M,
        truncated_M=draw.truncated_M,
        inner_M2=draw.inner_M2,
        source_M=draw.source_M,
        family=draw.family,
        sampling_gap=gap,
        caveats=(*draw.caveats, *_sampling_caveats(gap, top_k, top_p, min_p)),
        problem=draw.problem,
    )


def _sampling_gap(scores: CrossScores, draw: Draw) -> float:
    if not draw.logprobs:
        return float("nan")
    own_MR = scores.logprobs_MNR[np.arange(draw.num_reasonings), draw.column_M]
    gaps = [
        np.abs(own_R[: len(recorded)] - recorded)
        for own_R, recorded in zip(own_MR, draw.logprobs, strict=True)
        if recorded is not None and len(recorded)
    ]
    return float(np.concatenate(gaps).mean()) if gaps else float("nan")


def _sampling_caveats(gap: float, top_k: int, top_p: float, min_p: float) -> list[str]:
    out = []
    if top_k > 0 or top_p < 1 or min_p > 0:
        out.append(
            f"sampled with top_k {top_k}, top_p {top_p:g} and min_p {min_p:g}, scored with the "
            "whole distribution: the estimates are biased"
        )
    if gap > MAX_SAMPLING_GAP:
        out.append(
            f"scores are {gap:.2g} nats per token away from those recorded at sampling (other "
            "weights, or another temperature): the estimates are biased"
        )
    return out


def _distinct(rows: Sequence[IntArray]) -> tuple[list[IntArray], list[int]]:
    """The distinct arrays in order of first appearance, and the place of each row among them."""
    seen: dict[bytes, int] = {}
    unique: list[IntArray] = []
    place: list[int] = []
    for row in rows:
        array = np.asarray(row, dtype=np.int32)
        key = array.tobytes()
        if key not in seen:
            seen[key] = len(unique)
            unique.append(array)
        place.append(seen[key])
    return unique, place


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringCost:
    """What the scoring took.

    `num_token_forwards` are tokens that went through the model; `num_naive` what one pass per pair
    takes, sum over n of M (|x_n| + R), the reference system's formula.
    """

    num_token_forwards: int
    num_padding: int
    """Of them, padding."""
    num_naive: int
    seconds: float

    @property
    def saving(self) -> float:
        """How many times fewer token-forwards than the naive formula; NaN without any."""
        return self.num_naive / self.num_token_forwards if self.num_token_forwards else float("nan")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossScores:
    """log p(z_m[t] | x_n, z_m[:t]) in nats, and where the reasonings come from.

    Prompts are distinct (`ragen.py` alone draws equal ones). Reasoning m was sampled under
    prompt `column_M[m]` (in the `state` family: under a longer one that ends in the same
    observation). `-inf` is a probability of zero. NaN is a score that could not be had, and makes
    the estimates not available.

    Raises:
        ValueError: shapes do not fit together, a column does not exist, or a log-prob is positive.
    """

    logprobs_MNR: NDArray[np.float32] | FloatArray64  # zero behind a reasoning's end
    lengths_M: IntArray64
    column_M: IntArray64
    cluster_N: IntArray64 | None = None
    """Prompts with the same number belong together (one task); None: each stands alone."""
    env_N: tuple[str, ...] | None = None
    turn_M: IntArray64 | None = None
    truncated_M: BoolArray | None = None
    """The reasoning was cut off: it is scored as the prefix it is."""
    inner_M2: IntArray64 | None = None
    """Half-open: the tokens between the tags, empty without a closing tag or without words."""
    source_M: tuple[tuple[str, int], ...] | None = None
    """Trajectory id and turn index of each reasoning."""
    family: str = "custom"
    caveats: tuple[str, ...] = ()
    """What makes the estimates approximate, in words."""
    problem: str = ""
    """Why there is nothing to estimate, in words; empty if there is."""
    sampling_gap: float = float("nan")
    """Mean distance of the own column from the log-probs recorded at sampling, nats per token; NaN
    where none were recorded."""
    cost: ScoringCost | None = None

    def __post_init__(self) -> None:
        scores = np.asarray(self.logprobs_MNR)
        if scores.ndim != 3:
            raise ValueError(f"logprobs_MNR has shape {scores.shape}, but must be (M, N, R)")
        if scores.dtype not in (np.float32, np.float64):
            scores = scores.astype(np.float64)
        num_reasonings, num_prompts, longest = scores.shape
        _freeze(self, "logprobs_MNR", scores)
        for name in ("lengths_M", "column_M", "turn_M", "truncated_M"):
            _freeze_labels(self, name, (num_reasonings,))
        _freeze_labels(self, "inner_M2", (num_reasonings, 2))
        _freeze_labels(self, "cluster_N", (num_prompts,))
        for name, expected in (("env_N", num_prompts), ("source_M", num_reasonings)):
            value = getattr(self, name)
            if value is not None and len(value) != expected:
                raise ValueError(f"{name} has {len(value)} entries, but must have {expected}")
        if num_reasonings == 0:
            return
        low, high = int(self.column_M.min()), int(self.column_M.max())
        if low < 0 or high >= num_prompts:
            raise ValueError(f"column_M spans [{low}, {high}], but there are {num_prompts} prompts")
        low, high = int(self.lengths_M.min()), int(self.lengths_M.max())
        if low < 0 or high > longest:
            raise ValueError(f"lengths_M spans [{low}, {high}], but must lie in [0, {longest}]")
        if scores.size and np.nanmax(scores, initial=-np.inf) > MAX_LOGPROB:
            raise ValueError(f"log-probs reach {np.nanmax(scores):.4g}, but must not exceed 0")

    @classmethod
    def of_sequences(cls, logprob_MN: ArrayLike, column_M: ArrayLike) -> CrossScores:
        """Scores of which only the sums over tokens are known: log p(z_m | x_n), (M, N).

        >>> scores = CrossScores.of_sequences(np.log([[0.9, 0.1], [0.1, 0.9]]), [0, 1])
        >>> scores.num_prompts, scores.num_reasonings
        (2, 2)
        """
        scores = np.asarray(logprob_MN, dtype=np.float64)
        return cls(
            logprobs_MNR=scores[..., None],
            lengths_M=np.ones(len(scores), dtype=np.int64),
            column_M=np.asarray(column_M, dtype=np.int64),
        )

    @classmethod
    def missing(cls, problem: str, *, family: str = "custom") -> CrossScores:
        """No scores, and why: every estimate of them is NaN with this reason."""
        none = np.zeros(0, dtype=np.int64)
        return cls(
            logprobs_MNR=np.zeros((0, 0, 0)),
            lengths_M=none,
            column_M=none,
            family=family,
            problem=problem,
        )

    @property
    def num_prompts(self) -> int:
        return int(self.logprobs_MNR.shape[1])

    @property
    def num_reasonings(self) -> int:
        return int(self.logprobs_MNR.shape[0])

    @property
    def clusters_N(self) -> IntArray64:
        """Cluster of each prompt, numbered from 0 without gaps, (N,)."""
        if self.cluster_N is None:
            return np.arange(self.num_prompts)
        return np.unique(self.cluster_N, return_inverse=True)[1].astype(np.int64)

    def sums_MN(self) -> FloatArray64:
        """log p of reasoning m given x_n, (M, N)."""
        whole_M2 = np.stack([np.zeros_like(self.lengths_M), self.lengths_M], axis=1)
        return self._sums_within(whole_M2)

    def inner_sums_MN(self) -> FloatArray64:
        """log p of the tokens between the tags given x_n and what stands before, (M, N).

        Of whole reasonings where the tags are not known.
        """
        return self.sums_MN() if self.inner_M2 is None else self._sums_within(self.inner_M2)

    def _sums_within(self, span_M2: IntArray64) -> FloatArray64:
        places = np.arange(self.logprobs_MNR.shape[2])
        inside_MR = (places >= span_M2[:, :1]) & (places < span_M2[:, 1:])
        sums: FloatArray64 = np.where(inside_MR[:, None, :], self.logprobs_MNR, 0.0).sum(
            axis=2, dtype=np.float64
        )
        return sums


MAX_LOGPROB = 1e-3
"""Rounding may put a log-prob this far above zero."""


def _freeze(record: CrossScores, name: str, array: NDArray[np.generic]) -> None:
    view = array.view()
    view.flags.writeable = False
    object.__setattr__(record, name, view)


def _freeze_labels(record: CrossScores, name: str, shape: tuple[int, ...]) -> None:
    value = getattr(record, name)
    if value is None:
        return
    array = np.asarray(value)
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, but must be {shape}")
    _freeze(record, name, array.astype(np.bool_ if name == "truncated_M" else np.int64))
