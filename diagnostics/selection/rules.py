"""The rules of selection: one number per unit in, the units to keep out.

Each rule sees the candidates' values and returns the positions it keeps. Equal values are ranked by
a hash, so that no position in the batch, and no environment listed first, is preferred. What a rule
of the user's own returns is checked before anything trains on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echoscope.store.records import BoolArray, FloatArray64, IndexArray
from echoscope.text.user_code import UserCodeError, call, loaded

from ..config import SelectionConfig

if TYPE_CHECKING:
    from .filter import GroupArrays


def keep_by_own_rule(arrays: GroupArrays, config: SelectionConfig) -> BoolArray:
    """(P, G), or (P, 1) for whole groups: what `config.function` keeps.

    The rule is called as `function(arrays, **params)` with read-only copies. It returns booleans:
    (P,) of whole groups, or (P, G) of single trajectories.

    Raises:
        UserCodeError: it is not loaded in this process, it failed, or it returned something else.
    """
    name = config.function
    copies: dict[str, Any] = {
        array.name: value.copy()
        for array in fields(arrays)
        if isinstance(value := getattr(arrays, array.name), np.ndarray)
    }
    for value in copies.values():
        value.setflags(write=False)
    rule = loaded("selection", name)
    result = call("selection", name, rule, replace(arrays, **copies), **config.params)
    keep = np.asarray(result)
    shape = arrays.trainable_PG.shape
    if keep.shape not in (shape[:1], shape) or keep.dtype != np.bool_:
        raise UserCodeError(
            f"selection plug-in {name!r} returned {keep.dtype} of the shape {keep.shape}, but must "
            f"return booleans of the shape (P,), {shape[:1]}, or (P, G), {shape}"
        )
    return keep[:, None] if keep.ndim == 1 else keep


ZERO = 1e-10
"""A metric no larger than this in absolute value is zero."""
TOLERANCE = 0.01
"""Share of the mass that `top_p` may miss."""
ROUNDING = 1e-12
"""Share of the mass by which a sum of floats may miss its target, and of the largest value by which
equal values may differ."""


def is_zero(values: ArrayLike) -> NDArray[np.bool_]:
    return np.asarray(np.abs(np.asarray(values, dtype=np.float64)) <= ZERO)


def select(
    values: ArrayLike, config: SelectionConfig, *, ties: NDArray[np.uint64] | None = None
) -> NDArray[np.bool_]:
    """Which units to keep.

    Args:
        values: (N,) metric of every unit. NaN and infinite values are never candidates, values of
            zero only with `config.include_zero`.
        config: The rule; `metric` plays no part here.
        ties: (N,) among equal values the smaller number comes first; the position where None.

    Returns:
        (N,) True where kept. All True for strategy `none`.
    """
    array = np.asarray(values, dtype=np.float64)
    if config.strategy == "none":
        return np.ones(array.size, dtype=np.bool_)
    keep = np.zeros(array.size, dtype=np.bool_)
    is_allowed = np.isfinite(array) & (config.include_zero | ~is_zero(array))
    candidates = np.flatnonzero(is_allowed)
    if candidates.size:
        rule = RULES[config.strategy]
        order = np.arange(array.size, dtype=np.uint64) if ties is None else ties
        units = Units(values=array[candidates], ties=order[candidates], num_units=array.size)
        keep[candidates[rule(units, config)]] = True
    return keep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Units:
    """The candidates of a rule."""

    values: FloatArray64
    ties: NDArray[np.uint64]
    """Order among equal values."""
    num_units: int
    """Of all units, candidates or not."""

    def ranked(self, config: SelectionConfig) -> IndexArray:
        """Best first."""
        values = -self.values if config.keep == "largest" else self.values
        # The same rewards summed in another order differ in the last bits: those are ties.
        grain = float(np.abs(values).max()) * ROUNDING
        return np.lexsort((self.ties, np.round(values / grain) if grain > 0 else values))


def mass(values: FloatArray64) -> FloatArray64:
    """What top_p shares out: the values, measured from the smallest if any is negative.

    Equal negative values share equally.
    """
    low = float(values.min())
    if low >= 0:
        return values
    shifted = values - low
    return shifted if shifted.any() else np.ones_like(values)


def top_p(units: Units, config: SelectionConfig) -> IndexArray:
    """The shortest prefix of the ranking that holds `value` of the mass, which is the metric.

    `TOLERANCE` of it may be missing. Units without mass are passed over from the largest end, and
    included from the smallest.
    """
    values, order = units.values, units.ranked(config)
    if config.value >= 1:
        return order
    shares = mass(values)
    target = (config.value - TOLERANCE) * shares.sum()
    total = float(shares.sum())
    if total == 0:
        return order[:0]
    reached = np.cumsum(shares[order]) >= target - ROUNDING * total
    return order[: int(reached.argmax()) + 1]


def top_k(units: Units, config: SelectionConfig) -> IndexArray:
    """The best `value` of all units, candidates or not, and at least one."""
    k = int(np.floor(config.value * units.num_units + 1e-9))
    return units.ranked(config)[: max(1, k)]


def top_k_abs(units: Units, config: SelectionConfig) -> IndexArray:
    """The best `value` units, and at least one."""
    return units.ranked(config)[: max(1, int(config.value))]


def min_p(units: Units, config: SelectionConfig) -> IndexArray:
    """The units within a factor `value` of the best.

    Largest: metric >= value * max. Smallest: metric <= min / value. With a negative metric both
    measure the distance from the worst: it must reach `value` times that of the best.
    """
    values = units.values
    low, high = float(values.min()), float(values.max())
    if low < 0:
        distance = values - low if config.keep == "largest" else high - values
        return np.flatnonzero(distance >= config.value * (high - low) * (1 - ROUNDING))
    if config.keep == "largest":
        return np.flatnonzero(values >= config.value * high - ZERO)
    return np.flatnonzero(values <= low / config.value + ZERO)


Rule = Callable[[Units, SelectionConfig], IndexArray]
RULES: dict[str, Rule] = {
    "top_p": top_p,
    "top_k": top_k,
    "top_k_abs": top_k_abs,
    "min_p": min_p,
}
