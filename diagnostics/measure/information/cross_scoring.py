"""Every reasoning scored under every prompt, each prompt forwarded once.

That takes sum over n of (|x_n| + M R) token-forwards, where one pass per pair takes sum over n of
M (|x_n| + R). What forwards them is a `Scorer`; `scoring.py` has one over a language model.

Legend: **M** reasonings, **N** prompts, **R** tokens of the longest reasoning.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import FloatArray, IntArray

from .cross_scores import CrossScores, ScoringCost
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
