"""Healthy stretches of real runs drawn again: what alarms would fire by chance alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def block_bootstrap(
    rows: NDArray[np.float64], length: int, block: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """(length, C) rows drawn in whole blocks from `rows` (R, C), so that neighbours stay together.

    Moving blocks (Kuensch 1989): autocorrelation within `block` rows survives.

    Raises:
        ValueError: fewer rows than one block, or a block of none.
    """
    if not 1 <= block <= len(rows):
        raise ValueError(f"block is {block}, but must lie in [1, {len(rows)}], the number of rows")
    num_blocks = -(-length // block)
    starts = rng.integers(0, len(rows) - block + 1, size=num_blocks)
    return np.concatenate([rows[start : start + block] for start in starts])[:length]


def without_trend(values: NDArray[np.float64], window: int = 21) -> NDArray[np.float64]:
    """(R,) `values` less their centred running median, plus their overall median; NaN stays.

    Values that often are one and the same (half of the groups without spread, say) are kept as
    they are: their median jumps where nothing moves.
    """
    finite = values[np.isfinite(values)]
    if not finite.size or np.unique(finite, return_counts=True)[1].max() > 0.2 * finite.size:
        return values
    half = window // 2
    trend = np.array(
        [
            np.nanmedian(part) if np.isfinite(part).any() else np.nan
            for part in (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
        ]
    )
    return np.asarray(values - trend + float(np.nanmedian(values)))
