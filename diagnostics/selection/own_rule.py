"""A selection rule of the user's own: what it returns is checked before anything trains on it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from echoscope.store.records import BoolArray
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
