"""Texts that begin alike are forwarded once: continuations packed into trees of their prefixes.

A node is a token after some prefix. It sees the nodes on its path from the root, and itself; so one
row of a forward pass holds many continuations, each as if it stood alone. Last tokens predict
nothing that is asked for and have no node.

Legend: **W** nodes of a pack, in an order in which every node follows its parent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from echoscope.store.records import IntArray, IntArray64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pack:
    """Some continuations as one row of a forward pass."""

    tokens_W: IntArray64
    depth_W: IntArray64
    """0 for a first token: its position counted from the end of the prompt."""
    sees_WW: NDArray[np.bool_]
    """Row: a node; column: whether it attends to that one. Its ancestors and itself."""
    members: tuple[int, ...]
    """Indices of the continuations, none of them empty."""
    paths: tuple[IntArray64, ...]
    """For each member the nodes of all its tokens but the last, in order."""

    @property
    def num_nodes(self) -> int:
        return len(self.tokens_W)


def pack_prefixes(continuations: Sequence[IntArray], max_nodes: int) -> list[Pack]:
    """Pack continuations, each into one pack; a pack has at most `max_nodes`, or one member.

    >>> one, *rest = pack_prefixes([np.array([5, 6, 7]), np.array([5, 6, 8])], 10)
    >>> one.tokens_W.tolist(), one.depth_W.tolist(), rest  # 7 and 8 are last tokens
    ([5, 6], [0, 1], [])
    """
    # In dictionary order whatever shares a beginning stands together.
    rows = {m: tuple(z.tolist()) for m, z in enumerate(continuations) if len(z)}
    packs: list[_Growing] = []
    for m in sorted(rows, key=rows.__getitem__):
        if not packs or not packs[-1].add(m, rows[m], max_nodes):
            packs.append(_Growing())
            packs[-1].add(m, rows[m], max_nodes)
    return [one.packed() for one in packs]


class _Growing:
    """A pack while it is filled, in dictionary order."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._parent: list[int] = []
        self._members: list[int] = []
        self._paths: list[list[int]] = []
        self._last: tuple[int, ...] = ()

    def add(self, member: int, row: tuple[int, ...], max_nodes: int) -> bool:
        """Whether it still fitted in; the first one always does."""
        path = self._paths[-1] if self._paths else []
        shared = _num_equal(row[: len(path)], self._last)
        shared = min(shared, len(row) - 1)
        new = row[shared:-1]
        if self._members and len(self._tokens) + len(new) > max_nodes:
            return False
        nodes = path[:shared]
        for token in new:
            self._parent.append(nodes[-1] if nodes else -1)
            nodes.append(len(self._tokens))
            self._tokens.append(token)
        self._members.append(member)
        self._paths.append(nodes)
        self._last = row
        return True

    def packed(self) -> Pack:
        size = len(self._tokens)
        sees_WW = np.zeros((size, size), dtype=np.bool_)
        depth_W = np.zeros(size, dtype=np.int64)
        for node, parent in enumerate(self._parent):
            if parent >= 0:
                sees_WW[node] = sees_WW[parent]
                depth_W[node] = depth_W[parent] + 1
            sees_WW[node, node] = True
        return Pack(
            tokens_W=np.array(self._tokens, dtype=np.int64),
            depth_W=depth_W,
            sees_WW=sees_WW,
            members=tuple(self._members),
            paths=tuple(np.array(path, dtype=np.int64) for path in self._paths),
        )


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    """Length of their common beginning."""
    for k, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return k
    return min(len(one), len(other))


def similar_lengths(
    lengths: Sequence[int], *, max_tokens: int, max_padding: float
) -> Iterator[list[int]]:
    """Indices, longest first, in batches that need little padding.

    A batch padded to its longest has at most `max_tokens` and at most a share of `max_padding` of
    padding, or one member.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        padded = lengths[batch[0]] * (len(batch) + 1) if batch else 0
        real = sum(lengths[j] for j in batch) + lengths[i]
        if batch and (padded > max_tokens or padded - real > max_padding * padded):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch
