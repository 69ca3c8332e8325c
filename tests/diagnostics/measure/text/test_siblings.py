"""Siblings: duplicates, and entropy against known sources."""

from __future__ import annotations

import math

import numpy as np
import pytest
from episodes import one_turn_each
from hypothesis import given
from hypothesis import strategies as st

from echoscope.diagnostics.measure.text.measures import text_metrics
from echoscope.diagnostics.measure.text.similarity import chao_shen, ngram_entropy


def metrics(groups):
    return text_metrics(one_turn_each(groups), np.random.default_rng(0)).values


def test_equal_siblings_are_at_distance_zero():
    values = metrics([["go up", "go up"], ["go down", "go down"]])
    assert values["sibling_distance"] == pytest.approx(0)
    assert values["near_duplicate_frac"] == 1


def test_siblings_without_a_common_gram_are_at_distance_one():
    values = metrics([["alpha", "bravo"], ["kilo", "zulu"]])
    assert values["sibling_distance"] == pytest.approx(1)
    assert values["near_duplicate_frac"] == 0


def test_duplicates_are_counted_within_prompts_only():
    # Prompt 0: one of three pairs is equal; prompt 1: none of three.
    values = metrics([["same", "same", "other"], ["same", "one", "more"]])
    assert values["near_duplicate_frac"] == pytest.approx(1 / 6)


def test_chao_shen_by_hand():
    # n = 4, one outcome seen once: C = 3/4, p~ = 9/16 and 3/16.
    expected = sum(-p * math.log(p) / (1 - (1 - p) ** 4) for p in (9 / 16, 3 / 16))
    assert chao_shen([3, 1]) == pytest.approx(expected)


def test_chao_shen_of_a_constant_is_zero_and_of_nothing_not_a_number():
    assert chao_shen([7]) == 0
    assert chao_shen([1]) == 0
    assert math.isnan(chao_shen([]))
    assert math.isnan(chao_shen([0, 0]))


@given(st.lists(st.integers(0, 50), max_size=20))
def test_chao_shen_is_never_negative(counts):
    entropy = chao_shen(counts)
    assert entropy >= 0 or math.isnan(entropy)


def test_chao_shen_corrects_most_of_the_bias_of_small_samples():
    """Uniform over 20, 20 draws: the plug-in misses 0.46 nats of ln 20 = 3.00."""
    rng = np.random.default_rng(1)
    counts = [np.bincount(rng.integers(20, size=20), minlength=20) for _ in range(200)]
    plug_in = [-sum(c / 20 * math.log(c / 20) for c in row if c) for row in counts]
    corrected = np.mean([chao_shen(row.tolist()) for row in counts])
    assert math.log(20) - np.mean(plug_in) > 0.4
    assert abs(math.log(20) - corrected) < 0.1


def test_ngram_entropy_finds_the_rate_of_a_markov_chain():
    """Two words; after each, the same one with probability 0.9: 0.325 nats a word."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(20):
        word, text = "a", []
        for _ in range(400):
            word = word if rng.random() < 0.9 else {"a": "b", "b": "a"}[word]
            text.append(word)
        texts.append(text)
    rate = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    assert ngram_entropy(texts) == pytest.approx(rate, abs=0.02)


def test_ngram_entropy_of_one_text_said_again_and_again_is_zero():
    assert ngram_entropy([["go", "up"]] * 8) == pytest.approx(0, abs=1e-12)
