"""Which engine takes which prompt."""

from __future__ import annotations

import numpy as np

from echoscope.core.engines.hf.prefixes import StoredRow
from echoscope.core.engines.ray.splitting import split


def tokens(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def row(*ids: int) -> StoredRow:
    return StoredRow(tokens=tokens(*ids), num_cached=len(ids))


def test_equal_prompts_go_to_one_engine_and_all_engines_get_as_many() -> None:
    left, right = tokens(1, 2), tokens(3, 4)
    assert split([left, right] * 2, [], [], 2) == [[0, 2], [1, 3]]


def test_a_group_larger_than_an_even_share_is_divided() -> None:
    assert split([tokens(1, 2)] * 5, [], [], 2) == [[0, 1, 2], [3, 4]]


def test_a_prompt_goes_where_the_row_is_that_it_continues() -> None:
    prompts = [tokens(1, 2, 9), tokens(3, 4, 9)]
    assert split(prompts, [row(1, 2), row(3, 4)], [1, 0], 2) == [[1], [0]]


def test_an_engine_takes_no_more_than_a_quarter_above_its_share() -> None:
    """All four continue rows of engine 0: ceil(4 / 2 * 1.25) = 3 of them stay."""
    known = [row(k, 1) for k in range(4)]
    prompts = [tokens(k, 1, 9) for k in range(4)]
    assert split(prompts, known, [0, 0, 0, 0], 2) == [[0, 1, 2], [3]]


def test_fewer_prompts_than_engines_leave_some_without_work() -> None:
    assert split([tokens(1)], [], [], 3) == [[0], [], []]
    assert split([], [], [], 2) == [[], []]
