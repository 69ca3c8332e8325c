"""Cross-scores of which only the sums over tokens are known."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from echoscope.diagnostics.measure.information.cross_scores import CrossScores


def scores_of_sequences(logprob_MN: ArrayLike, column_M: ArrayLike) -> CrossScores:
    """From log p(z_m | x_n), (M, N), as if each reasoning were one token."""
    scores = np.asarray(logprob_MN, dtype=np.float64)
    return CrossScores(
        logprobs_MNR=scores[..., None],
        lengths_M=np.ones(len(scores), dtype=np.int64),
        column_M=np.asarray(column_M, dtype=np.int64),
    )
