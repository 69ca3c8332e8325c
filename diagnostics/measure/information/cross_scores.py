"""The log-probability of every reasoning's tokens under every prompt: what all estimates read.

Legend: **M** scored reasonings, **N** distinct prompts, **R** tokens of the longest reasoning.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray64 = NDArray[np.float64]
IntArray64 = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


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
