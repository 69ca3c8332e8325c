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
    """(P, G) what `config.function` keeps, of whole groups or of single trajectories.

    The rule is called as `function(arrays, **params)` with read-only copies. It returns booleans:
    (P,) with `selection.unit=group`, (P, G) with `selection.unit=trajectory`.

    Raises:
        UserCodeError: it is not loaded in this process, it failed, or it returned something else.
    """
    name = config.function
    copies: dict[str, Any] = {
        one.name: value.copy()
        for one in fields(arrays)
        if isinstance(value := getattr(arrays, one.name), np.ndarray)
    }
    for array in copies.values():
        array.setflags(write=False)
    rule = loaded("selection", name)
    result = call("selection", name, rule, replace(arrays, **copies), **config.params)
    keep = np.asarray(result)
    shape = arrays.trainable_PG.shape
    wanted = shape[:1] if config.unit == "group" else shape
    if keep.shape != wanted or keep.dtype != np.bool_:
        letters = "(P,)" if config.unit == "group" else "(P, G)"
        raise UserCodeError(
            f"selection plug-in {name!r} returned {keep.dtype} of the shape {keep.shape}, but with "
            f"selection.unit={config.unit} must return booleans {letters}, {wanted}"
        )
    return keep[:, None] if config.unit == "group" else keep
