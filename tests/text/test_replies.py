"""The response format: what is well-formed, and what is defined for everything else."""

from __future__ import annotations

import gc
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.text.replies import ParsedResponse, parse_response, split_actions


def parse(text: str, **settings: Any) -> ParsedResponse:
    return parse_response(text, **({"reasoning": True, "forced_think": True} | settings))


def parts(text: str, parsed: ParsedResponse) -> tuple[str | None, str | None]:
    def cut(span: tuple[int, int] | None) -> str | None:
        return None if span is None else text[slice(*span)]

    return cut(parsed.reasoning_chars), cut(parsed.answer_chars)


def test_spans_are_half_open_character_ranges_of_the_given_text():
    #       0123456789
    text = "go</think><answer>Up</answer>"
    parsed = parse(text)
    assert parsed.reasoning_chars == (0, 2)
    assert parsed.answer_chars == (18, 20)
    assert parsed.actions == ("Up",)
    assert parsed.is_well_formed
    assert parsed.problem == ""


@pytest.mark.parametrize(
    ("settings", "text", "reasoning", "answer", "actions"),
    [
        ({}, "a</think><answer>Up</answer>", "a", "Up", ("Up",)),
        ({}, "a</think>\n <ans> Up </ans>\n", "a", " Up ", ("Up",)),
        ({}, "</think><answer>Up</answer>", "", "Up", ("Up",)),
        ({}, "a</think><answer>Up || Left</answer>", "a", "Up || Left", ("Up", "Left")),
        ({}, "a</think><answer>||Up||||</answer>", "a", "||Up||||", ("Up",)),
        ({"action_separator": ";"}, "a</think><ans>Up;Left</ans>", "a", "Up;Left", ("Up", "Left")),
        ({"action_separator": None}, "a</think><ans>p || q</ans>", "a", "p || q", ("p || q",)),
        ({"forced_think": False}, " <think>a</think><ans>Up</ans>", "a", "Up", ("Up",)),
        ({"reasoning": False}, "<answer>Up</answer>", None, "Up", ("Up",)),
        ({}, "a < b </thin> > </think><answer>x < 3</answer>", "a < b </thin> > ", "x < 3", None),
    ],
)
def test_well_formed(settings, text, reasoning, answer, actions):
    parsed = parse(text, **settings)
    assert parsed.is_well_formed, parsed.problem
    assert parts(text, parsed) == (reasoning, answer)
    assert parsed.actions == (actions or (answer,))


@pytest.mark.parametrize(
    ("settings", "text", "reasoning", "answer", "actions", "problem"),
    [
        # Cut off, or stopped, inside the reasoning: an answer in there is only thought about.
        ({}, "", "", None, (), "<think> is never closed"),
        ({}, "so I <answer>Up</answer>", "so I <answer>Up</answer>", None, (), "<think> is never"),
        ({"forced_think": False}, "<think>so", "so", None, (), "<think> is never closed"),
        # Reasoning skipped: nothing is played, or skipping it would pay.
        ({"forced_think": False}, "<answer>Up</answer>", None, "Up", (), "no <think>"),
        ({"forced_think": False}, "a</think><ans>Up</ans>", None, "Up", (), "no <think>"),
        ({"forced_think": False}, "", None, None, (), "no <think>"),
        # The answer is missing, cut off or closed by the other tag.
        ({}, "a</think>Up", "a", None, (), "no <answer>"),
        ({"reasoning": False}, "Up", None, None, (), "no <answer>"),
        ({}, "a</think><answer>Up</answ", "a", "Up</answ", (), "<answer> is never closed"),
        ({}, "a</think><answer>Up</ans>", "a", "Up</ans>", (), "<answer> is never closed"),
        # Words outside the blocks: the answer is played all the same.
        ({"forced_think": False}, "x <think>a</think><ans>Up</ans>", "a", "Up", ("Up",), "before"),
        ({"reasoning": False}, "Well: <answer>Up</answer>", None, "Up", ("Up",), "before the ans"),
        (
            {},
            "a</think> so <answer>Up</answer>",
            "a",
            "Up",
            ("Up",),
            "between reasoning and answer",
        ),
        ({}, "a</think><answer>Up</answer> yes", "a", "Up", ("Up",), "after the answer"),
        ({}, "a</think>.</think><ans>Up</ans>", "a", "Up", ("Up",), "between reasoning and answer"),
        ({}, "a</think><ans>Up</ans><ans>Left</ans>", "a", "Up", ("Up",), "after the answer"),
        # Tags inside a block: it ends at the first closing tag.
        ({}, "<think>a</think><ans>Up</ans>", "<think>a", "Up", ("Up",), "inside the reasoning"),
        (
            {},
            "<ans>Up</ans></think><ans>Left</ans>",
            "<ans>Up</ans>",
            "Left",
            ("Left",),
            "inside the reasoning",
        ),
        (
            {},
            "a</think><ans><ans>Up</ans></ans>",
            "a",
            "<ans>Up",
            ("<ans>Up",),
            "inside the answer",
        ),
        # Tags are exact.
        ({}, "a</THINK><answer>Up</answer>", "a</THINK><answer>Up</answer>", None, (), "never"),
        # Nothing named.
        ({}, "a</think><answer> || </answer>", "a", " || ", (), "names no action"),
    ],
)
def test_not_well_formed(settings, text, reasoning, answer, actions, problem):
    parsed = parse(text, **settings)
    assert not parsed.is_well_formed
    assert problem in parsed.problem
    assert parts(text, parsed) == (reasoning, answer)
    assert parsed.actions == actions


def test_split_actions_strips_and_drops_empty_ones():
    assert split_actions(" Up ||| Left ||\n") == ("Up", "| Left")


def num_calls(text: str, **settings: Any) -> int:
    """Python and C calls that parsing makes: passes over the text, whatever each one costs.

    Nothing else is counted: caches are filled before, and no garbage of other tests is collected.
    """
    parse(text, **settings)
    calls = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(count)
    try:
        parse(text, **settings)
    finally:
        sys.setprofile(None)
        if was_collecting:
            gc.enable()
    return calls


@pytest.mark.parametrize(
    "hostile",
    ["<think>", "</think>", "<answer>", "</answer>", "<ans></think>", "<", "</", "<think", "a "],
)
@pytest.mark.parametrize("forced_think", [True, False])
def test_hostile_text_costs_a_fixed_number_of_linear_passes(hostile, forced_think):
    settings = {"forced_think": forced_think}
    assert num_calls(hostile * 10, **settings) == num_calls(hostile * 20_000, **settings)


SNIPPETS = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "<ans>", "</ans>", "||", " ", "Up", "<", "/>"]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(SNIPPETS, max_size=12).map("".join))


@given(TEXTS, st.booleans(), st.booleans())
def test_properties(text, reasoning, forced_think):
    parsed = parse_response(text, reasoning=reasoning, forced_think=forced_think)
    for span in (parsed.reasoning_chars, parsed.answer_chars):
        assert span is None or 0 <= span[0] <= span[1] <= len(text)
    if parsed.reasoning_chars is not None and parsed.answer_chars is not None:
        assert parsed.reasoning_chars[1] < parsed.answer_chars[0]
    assert reasoning or parsed.reasoning_chars is None
    assert parsed.is_well_formed == (parsed.problem == "")
    if parsed.actions:
        answer = text[slice(*parsed.answer_chars)]
        assert all(action in answer and action == action.strip() for action in parsed.actions)
        assert not reasoning or parsed.reasoning_chars is not None
    if parsed.is_well_formed:
        bare = text[: (parsed.reasoning_chars or parsed.answer_chars)[0]]
        assert bare.strip() in ("", "<think>", "<answer>", "<ans>")


@given(TEXTS, TEXTS)
def test_a_forced_tag_shifts_the_spans_and_changes_nothing_else(reasoning, answer):
    text = f"{reasoning}</think><answer>{answer}</answer>"
    forced = parse(text)
    whole = parse("<think>" + text, forced_think=False)
    assert whole.actions == forced.actions
    assert whole.problem == forced.problem
    assert whole.reasoning_chars == tuple(edge + 7 for edge in forced.reasoning_chars)
