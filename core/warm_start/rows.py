"""Rows of a warm start: episodes as tokens with loss weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from echoscope.store.records import FloatArray, IntArray, read_only


class SftError(ValueError):
    """The data, the model or the state of a warm start cannot be used; one line says why."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """One episode as tokens. `weights[t]` is the loss weight of predicting `tokens[t]`."""

    tokens: IntArray  # (L,)
    weights: FloatArray  # (L,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", read_only(self.tokens, np.int32))
        object.__setattr__(self, "weights", read_only(self.weights, np.float32))
        if len(self.tokens) != len(self.weights):
            raise ValueError(f"{len(self.tokens)} tokens with {len(self.weights)} weights")
