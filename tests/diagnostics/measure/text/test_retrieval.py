"""Dependence from text: chance is exact, the bound holds where I(X;Z) is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from echoscope.diagnostics.measure.text.similarity import dependence, retrieve, similarity

NAMES = ["alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel"]


def labels(num_prompts: int, num_siblings: int) -> np.ndarray:
    return np.repeat(np.arange(num_prompts), num_siblings)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def channel(q: float, num_prompts: int, num_siblings: int, seed: int) -> list[str]:
    """Z = X with probability q, else uniform over the prompts."""
    draws = rng(seed)
    return [
        NAMES[x if draws.random() < q else draws.integers(num_prompts)]
        for x in labels(num_prompts, num_siblings)
    ]


def true_information(q: float, n: int) -> float:
    a = q + (1 - q) / n
    rest = (1 - a) * math.log((1 - a) / (n - 1)) if a < 1 else 0.0
    return math.log(n) + a * math.log(a) + rest


def test_similarity_is_one_for_equal_texts_and_zero_without_common_grams():
    hits = similarity(["go up", "go up", "qqqq", ""])
    assert hits[0, 1] == pytest.approx(1)
    assert hits[0, 2] == pytest.approx(0)
    assert hits[3].tolist() == [0, 0, 0, 0]


def test_similarity_of_nothing_is_zero():
    assert similarity(["", " "]).tolist() == [[0, 0], [0, 0]]
    assert similarity([]).shape == (0, 0)


def test_disjoint_texts_are_always_retrieved():
    texts = [NAMES[p] for p in labels(4, 3)]
    hits = retrieve(similarity(texts), labels(4, 3), rng(), permutations=199)
    assert hits["retrieval_accuracy"] == pytest.approx(1)
    assert hits["retrieval_chance"] == pytest.approx(2 / 11)  # two siblings among eleven others
    assert hits["retrieval_p_value"] == 1 / 200


def test_equal_texts_are_retrieved_exactly_at_chance():
    hits = retrieve(np.ones((12, 12)), labels(4, 3), rng(), permutations=50)
    assert hits["retrieval_accuracy"] == pytest.approx(2 / 11)
    assert hits["retrieval_p_value"] == 1


def test_independent_texts_are_significant_as_often_as_stated():
    hits = [
        retrieve(similarity(channel(0.0, 8, 8, s)), labels(8, 8), rng(s), permutations=99)
        for s in range(60)
    ]
    p_values = [each["retrieval_p_value"] for each in hits]
    assert np.mean([p <= 0.1 for p in p_values]) == pytest.approx(0.1, abs=0.1)


def test_the_bound_reaches_its_ceiling_for_disjoint_texts():
    texts = [NAMES[p] for p in labels(8, 8)]
    assert dependence(similarity(texts), labels(8, 8)) == pytest.approx(1, abs=0.01)


def test_equal_texts_carry_no_information():
    assert dependence(np.ones((24, 24)), labels(6, 4)) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("q", [0.0, 0.5, 0.8])
def test_the_bound_stays_below_the_known_information_of_a_symmetric_channel(q):
    bounds = [
        math.log(8) * dependence(similarity(channel(q, 8, 8, seed)), labels(8, 8))
        for seed in range(20)
    ]
    error = np.std(bounds, ddof=1) / math.sqrt(len(bounds))
    assert np.mean(bounds) <= true_information(q, 8) + 2 * error + 0.02
    # With seven known texts a prompt it finds more than half of what is there.
    assert np.mean(bounds) >= 0.5 * true_information(q, 8) - 0.05


def test_three_siblings_are_enough_for_the_bound():
    texts = [NAMES[p] for p in labels(2, 3)]
    assert dependence(similarity(texts), labels(2, 3)) > 0.85
