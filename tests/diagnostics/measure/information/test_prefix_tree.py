"""Continuations packed into trees: every prefix once, every path its own."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.diagnostics.measure.information import prefix_tree
from echoscope.diagnostics.measure.information.prefix_tree import pack_prefixes, similar_lengths

ROWS = st.lists(st.lists(st.integers(0, 2), max_size=7), min_size=1, max_size=12)


def packs_of(rows: list[list[int]], max_nodes: int):
    return pack_prefixes([np.array(row, dtype=np.int32) for row in rows], max_nodes)


@given(ROWS, st.integers(1, 12))
def test_every_continuation_is_a_path_that_sees_itself_only(rows, max_nodes) -> None:
    packs = packs_of(rows, max_nodes)
    members = [m for pack in packs for m in pack.members]
    assert sorted(members) == [m for m, row in enumerate(rows) if row]
    for pack in packs:
        assert pack.num_nodes <= max_nodes or len(pack.members) == 1
        for m, path in zip(pack.members, pack.paths, strict=True):
            assert pack.tokens_W[path].tolist() == rows[m][:-1]
            assert pack.depth_W[path].tolist() == list(range(len(path)))
            for place, node in enumerate(path):
                assert np.flatnonzero(pack.sees_WW[node]).tolist() == path[: place + 1].tolist()


@given(ROWS)
def test_a_large_pack_has_a_node_for_each_prefix_that_something_follows(rows) -> None:
    prefixes = {tuple(row[:k]) for row in rows for k in range(1, len(row))}
    packs = packs_of(rows, 1000)
    assert sum(pack.num_nodes for pack in packs) == len(prefixes)


@given(
    st.lists(st.integers(1, 300), max_size=30),
    st.integers(1, 900),
    st.sampled_from([0.0, 0.1, 0.5]),
)
def test_batches_of_similar_length(lengths, max_tokens, max_padding) -> None:
    batches = list(similar_lengths(lengths, max_tokens=max_tokens, max_padding=max_padding))
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        padded = max(lengths[i] for i in batch) * len(batch)
        real = sum(lengths[i] for i in batch)
        fits = padded <= max_tokens and padded - real <= max_padding * padded
        assert len(batch) == 1 or fits


def test_neighbours_in_length_are_batched() -> None:
    """10 + 10 + 9 + 9 of 40 are 5 % padding, with 5 it would be 7 of 50, a seventh."""
    batches = similar_lengths([5, 10, 9, 10, 9, 2], max_tokens=100, max_padding=0.1)
    assert [sorted(batch) for batch in batches] == [[1, 2, 3, 4], [0], [5]]


@pytest.mark.parametrize("rows", [[], [[]], [[1]]])
def test_nothing_to_forward(rows) -> None:
    assert sum(pack.num_nodes for pack in packs_of(rows, 5)) == 0


def test_examples() -> None:
    assert doctest.testmod(prefix_tree).failed == 0
