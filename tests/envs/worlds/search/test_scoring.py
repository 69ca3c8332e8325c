"""Answers are compared as SQuAD and HotpotQA compare them."""

from __future__ import annotations

import pytest
from costs import processor_seconds
from hypothesis import given, settings
from hypothesis import strategies as st

from echoscope.envs.worlds.search.scoring import MAX_ANSWER_CHARS, f1, judge, normalised


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The Beatles", "beatles"),
        ("  an  apple, a day ", "apple day"),
        ("1,463,723", "1463723"),
        ("Asia/Tokyo", "asiatokyo"),
        (".jp", "jp"),
        ("theatre", "theatre"),
        ("São Paulo", "são paulo"),
        ("The", ""),
        ("", ""),
    ],
)
def test_normalisation(text: str, plain: str) -> None:
    assert normalised(text) == plain


@pytest.mark.parametrize(
    ("answer", "right", "score"),
    [
        ("Paris", "paris.", 1.0),
        # 1 common word of 4 and 1: precision 1/4, recall 1, F1 = 2 * 1/4 / (5/4).
        ("in the city of Paris", "Paris", 0.4),
        # 2 common of 3 and 2: precision 2/3, recall 1.
        ("New York City", "New York", 0.8),
        # A word counts as often as it stands in both: 1 common of 3 and 1.
        ("very very very", "very", 0.5),
        ("London", "Paris", 0.0),
        # HotpotQA compares yes and no as a whole.
        ("yes it is", "yes", 0.0),
        ("Yes.", "yes", 1.0),
        ("no", "yes", 0.0),
        ("", "Paris", 0.0),
    ],
)
def test_scores_by_hand(answer: str, right: str, score: float) -> None:
    assert f1(answer, right) == pytest.approx(score)
    assert f1(right, answer) == pytest.approx(score)


def test_the_best_of_several_right_answers_counts() -> None:
    rights = ("Dollar", "USD", "Dollar (USD)")
    assert judge("usd", rights).is_exact
    verdict = judge("the US dollar", rights)
    assert (verdict.is_exact, verdict.f1) == (False, pytest.approx(2 / 3))
    assert judge("peso", rights) == judge("peso", ())


def test_a_huge_answer_is_no_answer_and_costs_no_time() -> None:
    with processor_seconds(1.0):
        assert judge("yes " * 250_000, ("yes",)).f1 == 0.0
        assert judge("y" * MAX_ANSWER_CHARS, ("y",)).f1 == 0.0


@settings(max_examples=50)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_two_texts_have_a_score(first: str, other: str) -> None:
    verdict = judge(first, (other,))
    assert 0.0 <= verdict.f1 <= 1.0
    assert not verdict.is_exact or verdict.f1 == 1.0 or not normalised(other)
