"""Loops, echo, agreement, form: each on a case worked by hand."""

from __future__ import annotations

import numpy as np
import pytest
from episodes import episode, text_turn
from hypothesis import given
from hypothesis import strategies as st

from echoscope.diagnostics.measure.text.measures import (
    agreements,
    echo_share,
    last_named,
    loops,
    named_moves,
    text_metrics,
)
from echoscope.diagnostics.measure.text.sample import ngrams, word_spans, words


def test_words_are_lower_case_runs_of_letters_and_single_signs():
    assert words("Go up_2, NOW!!") == ("go", "up_2", ",", "now", "!", "!")


def test_each_chinese_character_is_a_word():
    assert words("\u5411\u4e0aup2 \u3042!") == ("\u5411", "\u4e0a", "up2", "\u3042", "!")


@given(st.text(max_size=200))
def test_word_spans_match_words(text):
    assert tuple(text[a:b].lower() for a, b in word_spans(text)) == words(text)


def test_ngrams_of_a_short_text_are_the_text():
    assert ngrams(["a", "b", "c"], 2) == [("a", "b"), ("b", "c")]
    assert ngrams(["a"], 2) == [("a",)]
    assert ngrams([], 2) == []


def test_a_word_said_forever_is_a_loop():
    looped = loops("go " * 50)
    assert looped.longest_word_run == 50
    assert looped.repeated_ngram_frac == 1 - 1 / 47  # 47 4-grams, all equal
    assert looped.is_loop


def test_a_sign_said_forever_is_a_loop_and_is_shown():
    looped = loops("ab" + "!" * 40 + "c")
    assert (looped.longest_char_run, looped.char_run) == (40, (2, 42))
    assert looped.is_loop


def test_ordinary_text_and_drawn_boards_are_no_loops():
    assert not loops("The box is left of the target, so I push it right.").is_loop
    assert loops("a" + " " * 50 + "b").longest_char_run == 1
    assert not loops("").is_loop


def test_a_phrase_repeated_through_a_long_response_is_a_loop():
    assert loops("I am not sure about this. " * 10).is_loop


def test_echo_is_the_share_of_grams_said_in_the_turn_before():
    # 4-grams of "a b c d e": (a b c d), (b c d e); the first stood before.
    assert echo_share("a b c d e", "x a b c d") == 0.5
    assert echo_share("go up", "now I go up there") == 1
    assert echo_share("go up", "up I go") == 0
    assert echo_share("", "go up") is None
    assert echo_share("go up", "") is None


def test_the_last_named_move_is_found_as_whole_words():
    moves = {("up",), ("left",), ("turn", "left")}
    assert last_named("Left is a hole, so I go up.", moves) == ("up",)
    assert last_named("upward leftist", moves) is None
    assert last_named("I turn left", moves) == ("turn", "left")
    assert last_named("", moves) is None


def test_agreement_compares_the_last_named_with_the_last_executed():
    turns = [
        text_turn("go up", index=0, action="up"),
        text_turn("go up", index=1, action="down"),
        text_turn("no idea", index=2, action="down"),  # names nothing
        text_turn("go up", index=3, action=None),  # executes nothing
    ]
    one_episode = episode("p", turns)
    agreeing = list(agreements([one_episode], named_moves([one_episode])))
    assert [(turn.index, agrees) for _, turn, agrees in agreeing] == [(0, True), (1, False)]


def test_free_text_actions_name_no_moves():
    long = [episode("p", [text_turn("", action="search for the tallest tower")])]
    many = [episode("p", [text_turn("", action=f"a{i}")], index=i) for i in range(70)]
    huge = [episode("p", [text_turn("", action="x" * 1000)])]
    assert named_moves(long) == named_moves(many) == named_moves(huge) == set()


def test_form_is_counted_over_turns():
    turns = [
        text_turn("one", index=0),
        text_turn("", index=1, action=None),
        text_turn("never ends", index=2, is_closed=False, action=None),
        text_turn(None, index=3, action=None, is_effective=False),
    ]
    values = text_metrics([episode("p", turns)], np.random.default_rng(0)).values
    assert values["valid_frac"] == 0.25
    assert values["truncated_frac"] == 0.25
    assert values["closed_reasoning_frac"] == 0.5
    assert values["num_chars_p50"] == pytest.approx(np.median([len(t.response) for t in turns]))
