"""Where the keys and values of sampled rows live: one preallocated block per layer, row by row.

Column c of row r holds the key and value of that row's token at position c, so rows of different
lengths share a batch without padding, a row is rolled back by forgetting its last columns, and a
prefix goes to a sibling by copying columns.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

COLUMN_BLOCK = 64
"""Columns are allocated in multiples of this."""


class RowCache(Cache):  # type: ignore[misc]  # transformers carries no types
    """Keys and values of up to `num_rows` token rows with `num_columns` positions each.

    A forward pass is prepared with `aim`: where its keys and values are written and which rows and
    columns its attention reads. Buffers are allocated at a layer's first update, zeroed (a masked
    column must not hold NaN, since 0 * NaN is NaN).
    """

    def __init__(self, *, device: torch.device) -> None:
        super().__init__(layers=[])
        self.device = device
        self.num_rows = 0
        self.num_columns = 0
        self._blocks: list[tuple[Tensor, Tensor]] = []
        self._views: list[tuple[Tensor, Tensor]] = []
        self._view_shape = (0, 0)
        self._write = torch.empty(0, dtype=torch.long, device=device)
        self._rows: Tensor | None = None

    @property
    def spill(self) -> int:
        """The flat place that padding is written to; no row reads it."""
        return self.num_rows * self.num_columns

    def reserve(self, num_rows: int, num_columns: int) -> None:
        """Make room for so many rows and columns; what is stored stays where it is."""
        columns = -(-num_columns // COLUMN_BLOCK) * COLUMN_BLOCK
        rows, columns = max(num_rows, self.num_rows), max(columns, self.num_columns)
        if (rows, columns) == (self.num_rows, self.num_columns):
            return
        self._views = []
        for layer, pair in enumerate(self._blocks):
            # One layer at a time, so that at most one is held twice.
            keys, values = (self._grown(block, rows, columns) for block in pair)
            self._blocks[layer] = (keys, values)
        self.num_rows, self.num_columns = rows, columns

    def aim(
        self, *, write: Tensor, num_rows: int, num_columns: int, rows: Tensor | None = None
    ) -> None:
        """Say what the next forward passes write and read.

        Args:
            write: flat places `row * num_columns + column` of the new tokens, long (B * W,) in the
                order of the forward pass's (B, W) tokens. Kept by reference: a decode loop may
                advance it in place.
            num_rows: attention reads the rows `[0, num_rows)`, without a copy ...
            rows: ... or exactly these rows, long (B,), gathered.
            num_columns: attention reads the columns `[0, num_columns)`.
        """
        self._write = write
        self._rows = rows
        if self._view_shape != (num_rows, num_columns):
            self._view_shape = (num_rows, num_columns)
            self._views = []

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Store new keys and values, each (B, H, W, D); called by the model's attention layers."""
        if layer_idx == len(self._blocks):
            self._blocks.append((self._block_like(key_states), self._block_like(value_states)))
        keys, values = self._blocks[layer_idx]
        keys.index_copy_(0, self._write, key_states.transpose(1, 2).flatten(0, 1))
        values.index_copy_(0, self._write, value_states.transpose(1, 2).flatten(0, 1))
        if layer_idx == len(self._views):
            self._views.append((self._view(keys), self._view(values)))
        keys_view, values_view = self._views[layer_idx]
        if self._rows is None:
            return keys_view, values_view
        return keys_view.index_select(0, self._rows), values_view.index_select(0, self._rows)

    def copy_rows(self, *, source: Tensor, target: Tensor, num_columns: int) -> None:
        """Copy the first columns of the rows `source` over the rows `target`, all at once.

        Every source is read before any target is written, so permutations and fan-out are fine.
        """
        for pair in self._blocks:
            for block in pair:
                rows = self._by_row(block)[:, :num_columns]
                rows.index_copy_(0, target, rows.index_select(0, source))

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self._view_shape[1]

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return self.num_columns

    def _block_like(self, states: Tensor) -> Tensor:
        """(R * S + 1, H, D): heads innermost but one, so that a token is one contiguous piece."""
        _, heads, _, head_dim = states.shape
        shape = (self.num_rows * self.num_columns + 1, heads, head_dim)
        return torch.zeros(shape, dtype=states.dtype, device=states.device)

    def _by_row(self, block: Tensor) -> Tensor:
        """(R, S, H, D) view without the spill place."""
        return block[:-1].view(self.num_rows, self.num_columns, *block.shape[1:])

    def _view(self, block: Tensor) -> Tensor:
        """(R, H, S, D) view of what attention reads."""
        num_rows, num_columns = self._view_shape
        return self._by_row(block)[:num_rows, :num_columns].transpose(1, 2)

    def _grown(self, block: Tensor, rows: int, columns: int) -> Tensor:
        out = block.new_zeros((rows * columns + 1, *block.shape[1:]))
        target = out[:-1].view(rows, columns, *block.shape[1:])
        target[: self.num_rows, : self.num_columns] = self._by_row(block)
        return out
