"""Templates: which n-grams are common, and the text with its slots."""

from __future__ import annotations

import numpy as np
import pytest
from episodes import one_turn_each

from echoscope.diagnostics.measure.text.sample import draw
from echoscope.diagnostics.measure.text.similarity import similarity
from echoscope.diagnostics.measure.text.templates import CommonGrams, find_template

PLACES = ["garden", "kitchen", "cellar", "attic"]
MOVES = ["up", "down", "left", "right"]


def sample(groups):
    return draw(one_turn_each(groups), np.random.default_rng(0)).reasonings


def template(groups):
    reasonings = sample(groups)
    return find_template(reasonings, similarity([r.text for r in reasonings]))


def test_a_template_with_two_slots_is_recovered_as_text():
    groups = [
        [f"I should move toward the {square}, so I will go {move}."] * 2
        for square, move in zip(PLACES, MOVES, strict=True)
    ]
    made = template(groups)
    assert made.text == "I should move toward the ___, so I will go ___."
    assert made.coverage == pytest.approx(11 / 13)  # 13 words and signs, two of them slots
    assert made.match_frac == 1
    assert set(made.fillers[0]) == set(PLACES)
    assert set(made.fillers[1]) == set(MOVES)


def test_a_slot_may_hold_several_words_or_none():
    made = template(
        [["go to the old red barn now"], ["go to the barn now"], ["go to the mill now"]]
    )
    assert made.text.startswith("go to the")
    assert made.text.endswith("now")


def test_equal_texts_are_a_template_without_slots():
    made = template([["I take left."], ["I take left."], ["I take left."]])
    assert (made.text, made.coverage) == ("I take left.", 1)


def test_a_word_that_most_prompts_share_and_most_reasonings_do_not_is_a_slot():
    """Under each prompt "down" is said twice of five: 4 words of all tell more than 5 of 40 %."""
    moves = ["down", "down", "up", "left", "right"]
    made = template([[f"No idea I guess {move}" for move in moves]] * 3)
    assert (made.text, made.match_frac) == ("No idea I guess ___", 1)


def test_texts_without_a_common_word_have_no_template():
    assert template([["alpha bravo"], ["charlie delta"], ["echo foxtrot"]]) is None


def test_one_prompt_has_no_template():
    assert template([["I take left.", "I take left."]]) is None


def test_common_grams_are_those_of_more_than_half_of_the_other_prompts():
    # Grams of two words. "a b" stands under prompts 0, 1, 2: two of prompt 0's three others.
    reasonings = sample([["a b c"], ["a b d"], ["a b e"], ["f g h"]])
    grams = CommonGrams(reasonings, 2)
    assert [grams.share(r) for r in reasonings] == [0.5, 0.5, 0.5, 0.0]


def test_a_gram_only_siblings_share_is_no_template():
    reasonings = sample([["a b c d", "a b c d"], ["e f g h", "e f g h"]])
    assert [CommonGrams(reasonings, 2).share(r) for r in reasonings] == [0, 0, 0, 0]


def test_a_reasoning_shorter_than_the_gram_is_one_gram():
    reasonings = sample([["up"], ["up"], ["down"]])
    assert [CommonGrams(reasonings, 5).share(r) for r in reasonings] == [0.0, 0.0, 0.0]
    reasonings = sample([["up"], ["up"]])
    assert [CommonGrams(reasonings, 5).share(r) for r in reasonings] == [1.0, 1.0]


def test_a_very_long_reasoning_is_aligned_on_its_first_words():
    text = "word " * 2000
    assert template([[text], [text]]).coverage == 1
