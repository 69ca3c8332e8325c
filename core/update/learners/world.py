"""The ranks that train together: how they share work, and how they agree.

A world of one rank does nothing: the same code trains on one device and on many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..batch import TokenBatch, select_rows

Part = tuple[TokenBatch, Tensor]
"""Rows that are forwarded at once, and their places (b,) in the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One rank among `size`. Collectives go over the default process group."""

    rank: int = 0
    size: int = 1

    @property
    def is_alone(self) -> bool:
        return self.size == 1

    def share(self, parts: Sequence[Part], batch: TokenBatch) -> list[Part]:
        """This rank's parts: about equal tokens on every rank, and equally many parts.

        A rank that has fewer parts forwards rows without sampled tokens at the end: every rank must
        join every collective. Such a part has no places, and nothing comes of it.
        """
        if self.is_alone or not parts:
            return list(parts)
        held: list[list[Part]] = [[] for _ in range(self.size)]
        num_tokens = [0] * self.size
        for part in sorted(parts, key=lambda part: -part[0].num_row_tokens):
            lightest = min(range(self.size), key=lambda rank: (num_tokens[rank], len(held[rank])))
            held[lightest].append(part)
            num_tokens[lightest] += part[0].num_row_tokens
        mine, most = held[self.rank], max(map(len, held))
        return [*mine, *[_without_samples(batch)] * (most - len(mine))]

    def sum_(self, tensor: Tensor) -> Tensor:
        """`tensor` with the sum over ranks in it."""
        if not self.is_alone:
            dist.all_reduce(tensor)
        return tensor

    def max_(self, tensor: Tensor) -> Tensor:
        """`tensor` with the largest of all ranks in it."""
        if not self.is_alone:
            dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return tensor


ALONE = World()


def _without_samples(batch: TokenBatch) -> Part:
    """One row of two tokens, none of them sampled."""
    row = select_rows(batch, [0])
    short: dict[str, Any] = {n: column[:, :2] for n, column in row.columns() if column.ndim == 2}
    none = torch.zeros_like(short["loss_mask"])
    short |= {"loss_mask": none, "temperatures": None, "supports": None}
    return replace(row, **short), torch.zeros(0, dtype=torch.int64, device=none.device)
