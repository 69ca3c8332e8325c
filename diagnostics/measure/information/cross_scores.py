"""The log-probability of every reasoning's tokens under every prompt: what all estimates read.

Each prompt is forwarded once. That takes sum over n of (|x_n| + M R) token-forwards, where one pass
per pair takes sum over n of M (|x_n| + R). What forwards them is a `Scorer`; `scoring.py` has one
over a language model.

Legend: **M** scored reasonings, **N** distinct prompts, **R** tokens of the longest reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray, FloatArray64, IntArray, IntArray64

from .pairs import Draw

MAX_SAMPLING_GAP = 0.02
"""Nats per token that rounding and another engine's kernels may explain."""


class ScoringError(ValueError):
    """A model or a prompt cannot be scored this way. The message names the way out."""


@dataclass(slots=True)
class Tally:
    """Token-forwards of a scorer so far, padding included."""

    num_tokens: int = 0


class Scorer(Protocol):
    """Scores continuations of prompts that are forwarded once."""

    tally: Tally

    def score(
        self, prompts: Sequence[IntArray], continuations: Sequence[Sequence[IntArray]]
    ) -> list[list[FloatArray]]:
        """Per-token log-probs of `continuations[n]` after `prompts[n]`, each as long as it is.

        Prompts and continuations have at least one token.
        """


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossScores:
    """log p(z_m[t] | x_n, z_m[:t]) in nats, and where the reasonings come from.

    Reasoning m was sampled under prompt `column_M[m]`. `-inf` is a probability of zero. NaN is a
    score that could not be had, and makes the estimates not available. So do no scores at all, with
    `problem` as the reason.
    """

    logprobs_MNR: NDArray[np.float32] | FloatArray64 = field(
        default_factory=lambda: np.zeros((0, 0, 0))
    )
    """Zero behind a reasoning's end."""
    lengths_M: IntArray64 = field(default_factory=lambda: np.zeros(0, np.int64))
    column_M: IntArray64 = field(default_factory=lambda: np.zeros(0, np.int64))
    inner_M2: IntArray64 | None = None
    """Half-open: the tokens between the tags, empty without a closing tag or without words."""
    source_M: tuple[tuple[str, int], ...] = ()
    """Trajectory id and turn index of each reasoning, where they are known."""
    family: str = "custom"
    problem: str = ""
    """Why there is nothing to estimate, in words; empty if there is."""
    sampling_gap: float = float("nan")
    """Mean distance of the own column from the log-probs recorded at sampling, nats per token; NaN
    where none were recorded."""

    @property
    def num_prompts(self) -> int:
        return int(self.logprobs_MNR.shape[1])

    @property
    def num_reasonings(self) -> int:
        return int(self.logprobs_MNR.shape[0])

    def sums_MN(self) -> FloatArray64:
        """log p of reasoning m given x_n, (M, N)."""
        whole_M2 = np.stack([np.zeros_like(self.lengths_M), self.lengths_M], axis=1)
        return self.sums_within(whole_M2)

    def sums_within(self, span_M2: IntArray64) -> FloatArray64:
        """log p of some tokens of each reasoning given x_n and what stands before, (M, N)."""
        places = np.arange(self.logprobs_MNR.shape[2])
        inside_MR = (places >= span_M2[:, :1]) & (places < span_M2[:, 1:])
        sums: FloatArray64 = np.where(inside_MR[:, None, :], self.logprobs_MNR, 0.0).sum(
            axis=2, dtype=np.float64
        )
        return sums


def cross_score(
    scorer: Scorer,
    prompts: Sequence[IntArray],
    reasonings: Sequence[IntArray],
    column_M: Sequence[int] | NDArray[np.int64],
) -> CrossScores:
    """Score every reasoning under every prompt; equal reasonings are forwarded once.

    Args:
        prompts: N distinct token id arrays.
        reasonings: M token id arrays, closing tags included, none of them empty.
        column_M: index of the prompt that each reasoning was sampled under.

    Raises:
        ScoringError: the model cannot take a row that long.
    """
    places: dict[bytes, int] = {}
    place_M = [places.setdefault(z.astype(np.int32).tobytes(), len(places)) for z in reasonings]
    unique = [np.frombuffer(key, dtype=np.int32) for key in places]
    longest = max(map(len, unique), default=0)
    scores = np.zeros((len(unique), len(prompts), longest), dtype=np.float32)
    for n, rows in enumerate(scorer.score(prompts, [unique] * len(prompts))):
        for m, row in enumerate(rows):
            scores[m, n, : len(row)] = row
    return CrossScores(
        logprobs_MNR=scores[place_M],
        lengths_M=np.array([len(z) for z in reasonings], dtype=np.int64),
        column_M=np.asarray(column_M, dtype=np.int64),
    )


def score_draw(scorer: Scorer, draw: Draw) -> CrossScores:
    """Cross-score a drawn family and keep what is known of its pairs.

    A draw without pairs gives scores without content that say why; nothing is forwarded. The own
    column is compared with the log-probs recorded at sampling: estimates are unbiased only where
    both are the same distribution.

    Raises:
        ScoringError: as `cross_score`.
    """
    if draw.num_reasonings == 0:
        return CrossScores(problem=draw.problem, family=draw.family)
    scores = cross_score(scorer, draw.prompts, draw.reasonings, draw.column_M)
    return replace(
        scores,
        inner_M2=draw.inner_M2,
        source_M=draw.source_M,
        family=draw.family,
        sampling_gap=_sampling_gap(scores, draw),
        problem=draw.problem,
    )


def _sampling_gap(scores: CrossScores, draw: Draw) -> float:
    own_MR = scores.logprobs_MNR[np.arange(draw.num_reasonings), draw.column_M]
    gaps = [
        np.abs(own_R[: len(recorded)] - recorded)
        for own_R, recorded in zip(own_MR, draw.logprobs, strict=True)
        if recorded is not None
    ]
    return float(np.concatenate(gaps).mean()) if gaps else float("nan")
