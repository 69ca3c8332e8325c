"""The prefill plan, checked by carrying it out on rows of plain tokens."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.core.engines.hf import prefixes
from echoscope.core.engines.hf.prefixes import (
    PrefillPlan,
    PrefixIndex,
    RowCopies,
    StoredRow,
    common_prefix,
    plan_prefill,
)

TOKEN = st.integers(0, 2)
PROMPTS = st.lists(st.lists(TOKEN, min_size=1, max_size=8), min_size=1, max_size=8)


@pytest.fixture(autouse=True, scope="module")
def _short_beginnings_are_shared() -> Iterator[None]:
    with patch.object(prefixes, "MIN_SHARED_TOKENS", 1):
        yield


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


def stored(tokens: list[int], num_cached: int | None = None) -> StoredRow:
    cached = len(tokens) if num_cached is None else num_cached
    return StoredRow(tokens=ids(*tokens), num_cached=cached)


def copy(rows: list[list[int]], copies: RowCopies) -> None:
    read = [rows[source][: copies.num_columns] for source in copies.sources]
    for target, columns in zip(copies.targets, read, strict=True):
        rows[target][: len(columns)] = columns


def carry_out(
    plan: PrefillPlan, prompts: list[np.ndarray], rows: list[list[int]]
) -> list[list[int]]:
    """Rows of tokens after the plan.

    A forward pass of [start, end) must find the prompt's first `start` tokens in the row.
    """
    copy(rows, plan.first)
    for wave in plan.waves:
        for span in wave.spans:
            prompt = prompts[span.prompt].tolist()
            assert span.start < span.end
            assert rows[span.row][: span.start] == prompt[: span.start]
            rows[span.row][span.start : span.end] = prompt[span.start : span.end]
        copy(rows, wave.copies)
    return rows


@given(
    PROMPTS,
    st.lists(st.one_of(st.none(), st.lists(TOKEN, min_size=1, max_size=8)), max_size=10),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_prompt_ends_up_in_its_row(
    prompts: list[list[int]], cached: list[list[int] | None], uncached: int, share: bool
) -> None:
    arrays = [ids(*prompt) for prompt in prompts]
    records = [
        None if tokens is None else stored(tokens, max(len(tokens) - uncached, 1))
        for tokens in cached
    ]
    plan = plan_prefill(arrays, records, share=share)
    empty: list[list[int]] = [[-1] * 8 for _ in range(max(len(prompts), len(cached)))]
    for row, record in zip(empty, records, strict=False):
        if record is not None:
            row[: record.num_cached] = record.tokens[: record.num_cached].tolist()
    rows = carry_out(plan, arrays, empty)
    assert sorted(plan.rows) == list(range(len(prompts)))
    for prompt, row in zip(prompts, plan.rows, strict=True):
        assert rows[row][: len(prompt)] == prompt
    ends = {span.prompt: span.end for span in plan.waves[-1].spans}
    assert set(ends) == set(plan.leader)
    assert all(prompts[i] == prompts[lead] for i, lead in enumerate(plan.leader))
    assert all(ends[lead] == len(prompts[lead]) for lead in plan.leader)


@given(PROMPTS)
def test_the_beginning_of_all_and_equal_prompts_are_forwarded_once(
    prompts: list[list[int]],
) -> None:
    """Each prompt's last token is forwarded besides."""
    arrays = [ids(*prompt) for prompt in prompts]
    plan = plan_prefill(arrays, [], share=True)
    forwarded = sum(span.end - span.start for wave in plan.waves for span in wave.spans)
    distinct = {tuple(prompt) for prompt in prompts}
    shortest = min(map(len, distinct))
    common = max(k for k in range(shortest) if len({prompt[:k] for prompt in distinct}) == 1)
    assert forwarded == common + sum(len(prompt) - common for prompt in distinct)


@given(PROMPTS, PROMPTS)
def test_the_longest_stored_prefix_is_found(
    rows: list[list[int]], prompts: list[list[int]]
) -> None:
    index = PrefixIndex([stored(row) for row in rows])
    for prompt in prompts:
        row, size = index.match(ids(*prompt))
        longest = max(common_prefix(ids(*prompt), ids(*other)) for other in rows)
        assert size == min(longest, len(prompt) - 1)
        assert size == 0 or rows[row][:size] == prompt[:size]


def test_continued_rows_stay_where_they_are() -> None:
    records = [stored([1, 2, 3]), None, stored([4, 5, 6])]
    prompts = [ids(4, 5, 6, 7), ids(9, 9), ids(1, 2, 3, 8)]
    plan = plan_prefill(prompts, records, share=True)
    assert plan.rows == [2, 1, 0]
    assert plan.first.targets == []
    assert [(s.prompt, s.start, s.end) for s in plan.waves[-1].spans] == [
        (0, 3, 4),
        (1, 0, 2),
        (2, 3, 4),
    ]


def test_a_small_saving_is_not_worth_a_pass() -> None:
    """Three prompts share 4 tokens, which would save 8."""
    prompts = [ids(1, 2, 3, 4, 5 + i) for i in range(3)]
    for least, num_passes in ((9, 1), (8, 2)):
        with patch.object(prefixes, "MIN_SHARED_TOKENS", least):
            assert len(plan_prefill(prompts, [], share=True).waves) == num_passes


@pytest.mark.parametrize(
    ("prompt", "continues"),
    [((1, 2, 3, 9), True), ((1, 2, 3), False), ((1, 2), False), ((1, 2, 4, 9), False)],
)
def test_a_prompt_continues_a_row_by_going_on_after_its_response(
    prompt: tuple[int, ...], continues: bool
) -> None:
    assert stored([1, 2, 3], num_cached=2).is_continued_by(ids(*prompt)) is continues
