"""Two episodes side by side: the words that only one of them has, and bounds on the work."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from html import unescape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import make_trajectory

from echoscope.dashboard.replay.diff import (
    MAX_CHARS,
    MAX_PAIRS,
    MAX_TURNS,
    DiffBudget,
    TextPiece,
    episodes_html,
    first_difference,
    word_diff,
)
from echoscope.store.records import Trajectory, Turn

EVIL = '<script>alert(1)</script><img src=x onerror="alert(1)">\u202e\x00'


def episode(*replies: str, observation: str = "board") -> Trajectory:
    turns = [
        Turn(index=n, observation=f"{observation} {n}", response=reply)
        for n, reply in enumerate(replies)
    ]
    return make_trajectory(*turns)


def parsed(html: str) -> ET.Element:
    """Only harmless elements stand around the texts."""
    root = ET.fromstring(f"<root>{html.replace('&#160;', ' ')}</root>")
    for element in root.iter():
        assert element.tag in ("root", "div", "span", "i")
        assert set(element.attrib) <= {"class", "title", "dir", "role", "aria-level"}
    return root


def only_in(html: str, side: str) -> list[str]:
    return ["".join(s.itertext()) for s in parsed(html).iter("span") if s.get("class") == side]


@pytest.mark.parametrize(
    ("left", "right", "ours", "theirs"),
    [
        ("go up now", "go left now", ["up "], ["left "]),
        ("same", "same", [], []),
        ("", "all new", [], ["all new"]),
        ("a b c", "a c", ["b "], []),
        ("I see a hole.  So up", "I see a goal.  So up", ["hole"], ["goal"]),
        ("line\none", "line\ntwo", ["one"], ["two"]),
    ],
)
def test_words_that_only_one_text_has(
    left: str, right: str, ours: list[str], theirs: list[str]
) -> None:
    sides = word_diff(left, right)
    assert [[p.text for p in side if not p.is_shared] for side in sides] == [ours, theirs]


@given(st.text("ab \n", max_size=60), st.text("ab \n", max_size=60))
def test_nothing_is_lost_and_what_is_shared_is_equal(left: str, right: str) -> None:
    sides = word_diff(left, right)
    assert ["".join(piece.text for piece in side) for side in sides] == [left, right]
    shared = ["".join(p.text for p in side if p.is_shared) for side in sides]
    assert shared[0] == shared[1]


def test_what_is_too_long_for_each_other_counts_as_different_between_equal_ends() -> None:
    size = int(MAX_PAIRS**0.5) + 1
    left = " ".join(["begin", *["x"] * size, "end"])
    right = " ".join(["begin", *["y"] * size, "end"])
    for side, word in zip(word_diff(left, right), "xy", strict=True):
        assert [piece.is_shared for piece in side] == [True, False, True]
        assert side[1].text == f"{word} " * size


def test_a_comparison_is_paid_for_once() -> None:
    budget = DiffBudget(left=10)
    assert budget.allows(6)
    assert not budget.allows(6)
    assert budget.left == 4
    assert word_diff("a b c", "d e f", DiffBudget(left=8))[0] == [
        TextPiece("a b c", is_shared=False)
    ]


def test_where_two_episodes_part() -> None:
    assert first_difference(episode("a", "b"), episode("a", "b")) is None
    assert first_difference(episode("a", "b"), episode("a", "c")) == 1
    assert first_difference(episode("a"), episode("a", "b")) == 1
    assert first_difference(episode("a"), episode("a", observation="other")) == 0


def test_turn_by_turn_with_what_is_the_same_once() -> None:
    html = episodes_html(episode("go up", "done now"), episode("go up", "done later", "more"), 1)
    assert html.count("go up") == 1
    assert html.count("board 0") == 1
    assert (only_in(html, "es-left"), only_in(html, "es-right")) == (["now"], ["later"])
    assert html.count("The episode has ended.") == 1
    turns = [d for d in parsed(html).iter("div") if (d.get("class") or "").startswith("es-turn")]
    assert ["es-now" in str(turn.get("class")) for turn in turns] == [False, True, False]


def test_hostile_text_stays_text() -> None:
    html = episodes_html(episode(EVIL, EVIL + " a"), episode(EVIL + " b", "x " + EVIL), 0)
    assert "<script" not in html
    assert "<img" not in html
    assert "\x00" not in html
    assert "alert(1)" in unescape("".join(parsed(html).itertext()))


def test_long_texts_and_many_turns_are_cut_and_counted() -> None:
    long = "x" * (MAX_CHARS + 5)
    html = episodes_html(episode(long), episode(long + "y"), 0)
    assert "5 more characters are not shown" in html
    assert "6 more characters are not shown" in html
    assert "5 more characters are not shown" in episodes_html(episode("a", long), episode("a"), 0)
    many = episodes_html(episode(*["a"] * (MAX_TURNS + 2)), episode("a"), 0)
    assert "2 more turns" in many
