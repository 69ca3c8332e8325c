"""A condition that somebody writes is one condition, over columns that exist."""

from __future__ import annotations

import doctest

import pytest

from echoscope.store.errors import QueryError
from echoscope.store.query import condition
from echoscope.store.query.condition import checked_condition

COLUMNS = ("id", "step", "success", "tag", "actions", "reward_terms")


@pytest.mark.parametrize(
    "text",
    [
        "success and step > 10",
        "step > 10 -- the late ones",
        "tag = 'a (b; c'",
        "trajectories.step > 10",
        "SUCCESS",
        "reward_terms['env'] > 0",
        "list_filter(actions, act -> act = 'up') = []",
        "id IN (SELECT trajectory_id FROM turns WHERE turn = 3)",
    ],
)
def test_conditions_pass(text: str) -> None:
    assert checked_condition(text, COLUMNS, "trajectories") == f"(\n{text}\n)"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "/* open",
        "step > 1; DROP TABLE steps",
        "1) UNION SELECT (2",
        "1) FROM turns WHERE (1",
        "true) ORDER BY (1",
        "true), (false",
        "step > 10) AS w, (SELECT 1",
        "true) LIMIT (1",
        "COPY steps TO 'x.csv'",
        "INSTALL httpfs",
        "step > 10 AS w",
    ],
)
def test_what_is_more_or_less_than_a_condition_is_refused(text: str) -> None:
    with pytest.raises(QueryError, match="is not one condition over the columns of trajectories"):
        checked_condition(text, COLUMNS, "trajectories")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("step > 1 AND sucess", "'sucess'; did you mean 'success' or 'is_success'?"),
        ("reward > 0", "'reward'; did you mean 'episode_return'?"),
        (
            "xyz.q = 3",
            "'xyz'; known: episode_return, id, is_success, num_turns, success, tag; a text stands "
            "in single quotes: 'xyz'",
        ),
    ],
)
def test_an_unknown_column_is_named_with_those_that_may_be_meant(text: str, hint: str) -> None:
    columns = ("id", "tag", "is_success", "success", "num_turns", "episode_return")
    with pytest.raises(QueryError) as raised:
        checked_condition(text.replace("step", "num_turns"), columns, "trajectories")
    assert str(raised.value) == f"trajectories have no column {hint}"


@pytest.mark.parametrize("text", ['tag = "a lake"', 'contains(tag, "a lake")'])
def test_a_text_without_single_quotes_is_shown_with_them(text: str) -> None:
    with pytest.raises(QueryError, match=r"; a text stands in single quotes: 'a lake'$"):
        checked_condition(text, COLUMNS, "trajectories")


def test_a_condition_that_breaks_off_says_so() -> None:
    with pytest.raises(QueryError) as raised:
        checked_condition("step >", COLUMNS, "trajectories")
    assert str(raised.value) == (
        "'step >' is not one condition over the columns of trajectories, such as \"step > 10\": it "
        "breaks off"
    )


def test_a_very_deep_condition_is_an_error_and_no_crash() -> None:
    with pytest.raises(QueryError):
        checked_condition("NOT (" * 20_000 + "true" + ")" * 20_000, COLUMNS, "trajectories")


def test_examples() -> None:
    assert doctest.testmod(condition).failed == 0
