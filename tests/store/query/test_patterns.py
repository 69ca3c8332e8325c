"""A filter that a person types takes linear time, and is explained where it is wrong."""

from __future__ import annotations

import pytest

from echoscope.store.errors import QueryError
from echoscope.store.query.patterns import MAX_PATTERN, matches

NAME = "frozen_lake_starpo_lr1e-5_seed3"


@pytest.mark.parametrize(
    "pattern",
    ["((.)+)+#", "(a|aa)+$", "(.*)*#", "(.*a){20}#", "^(([a-z])+.)+[A-Z]([a-z])+$"],
)
def test_no_pattern_takes_for_ever(pattern: str) -> None:
    texts = [NAME * 100, f"{'a' * 5000}!"]
    assert matches(pattern, texts) == [False, False]


def test_a_pattern_is_found_anywhere_whatever_the_case() -> None:
    texts = ["Eval/success", "policy/kl", "a/eval", ""]
    assert matches("^eval|KL$", texts) == [True, True, False, False]
    assert matches("", texts) == [True] * 4
    assert matches(".", []) == []


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(" * MAX_PATTERN, "missing )"),
        ("[", "missing ]"),
        ("*", "no argument for repetition operator"),
        ("(a{1000}){1000}", "invalid repetition size"),
        ("(?=a)", "invalid perl operator"),
        (r"(a)\1", "invalid escape sequence"),
        ("a(\ud800", "invalid perl operator"),
    ],
)
@pytest.mark.parametrize("texts", [[], ["abc", "\udc80"]])
def test_a_wrong_pattern_is_one_short_line(pattern: str, why: str, texts: list[str]) -> None:
    with pytest.raises(QueryError, match="is not a regular expression") as caught:
        matches(pattern, texts)
    message = str(caught.value)
    assert why in message
    assert "\n" not in message
    assert len(message) < 400


def test_a_pattern_has_a_length() -> None:
    with pytest.raises(QueryError, match="has 501 characters, at most 500"):
        matches("a" * 501, ["a"])
