"""Tool calls in the replay: name, arguments and result, and nothing in them that acts."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from html import unescape

import pytest
from trajectories import make_trajectory

from echoscope.dashboard.replay.html import MAX_CALLS, beyond_results, calls_html, turn_html
from echoscope.dashboard.replay.tokens import text_html
from echoscope.store.records import ToolCall, Turn

LOOK = ToolCall(name="lookup", arguments='{"item": "tea", "n": [1, 2]}', result="tea: 4")
EVIL = '<script>alert(1)</script><img src=x onerror="alert(1)">\u202e\x00'


def html_of(*calls: ToolCall, response: str = "x") -> str:
    return calls_html(Turn(index=0, observation="", response=response, calls=calls))


def visible_texts(html: str) -> list[str]:
    """The texts, in order; only harmless elements stand around them."""
    root = ET.fromstring(html)
    for element in root.iter():
        assert element.tag in ("div", "span", "i")
        assert set(element.attrib) <= {"class", "title", "dir"}
    return [text for text in root.itertext() if text.strip()]


def test_a_call_is_shown_as_a_call() -> None:
    assert visible_texts(html_of(LOOK)) == ['lookup(item="tea", n=[1, 2])', "result", "tea: 4"]


def test_long_arguments_stand_in_lines_of_their_own() -> None:
    call = replace(LOOK, arguments=json.dumps({"code": "x" * 200, "n": 1}))
    assert visible_texts(html_of(call)) == [
        "lookup", "code", f'"{"x" * 200}"', "n", "1", "result", "tea: 4"
    ]  # fmt: skip


def test_what_is_no_call_says_why_and_shows_what_was_written() -> None:
    broken = ToolCall(name="", arguments="<tool_call>{", result="Error: x.", problem="not JSON")
    assert visible_texts(html_of(broken)) == [
        "not a call", "not JSON", "written", "<tool_call>{", "result", "Error: x."
    ]  # fmt: skip


def test_a_call_that_was_not_played_says_so() -> None:
    assert visible_texts(html_of(ToolCall(name="f", arguments="{}")))[-1] == (
        "nothing: the call was not played"
    )


def test_hostile_calls_do_nothing() -> None:
    for arguments in (EVIL, f'{{"{EVIL.replace(chr(34), "")[:-1]}": 1}}', "[" * 100_000, "[1]"):
        html = html_of(ToolCall(name=EVIL, arguments=arguments, result=EVIL, problem=""))
        assert "<script" not in html
        assert "<img" not in html
        assert "alert(1)" in unescape("".join(visible_texts(html)))


def test_many_calls_are_cut_and_counted() -> None:
    assert html_of(*[LOOK] * (MAX_CALLS + 5)).count("es-call-name") == MAX_CALLS
    assert "5 more calls" in html_of(*[LOOK] * (MAX_CALLS + 5))


def test_a_turn_without_calls_looks_as_before() -> None:
    assert html_of() == ""


def test_the_reply_names_the_call_and_the_card_follows_it() -> None:
    response = "I look.</think><tool_call>{}</tool_call>"
    turn = Turn(
        index=0, observation="", response=response, reasoning_chars=(0, 7),
        answer_chars=(15, len(response)), calls=(LOOK,),
    )  # fmt: skip
    reply = text_html(turn)
    assert ">tool call</span>" in reply
    html = turn_html(make_trajectory(turn), 0, reply, is_now=True)
    assert html.index("es-region-answer") < html.index("es-call-name")


WRITTEN = '<tool_call>{"name": "lookup", "arguments": {"item": "tea", "n": [1, 2]}}</tool_call>'


def test_a_call_that_is_shown_as_a_call_is_not_printed_once_more() -> None:
    turn = Turn(index=0, observation="", response=f"I look.</think>{WRITTEN}", calls=(LOOK,))
    assert "lookup" not in text_html(replace(turn, reasoning_chars=(0, 7)))
    assert "I look." in text_html(replace(turn, reasoning_chars=(0, 7)))


@pytest.mark.parametrize(
    "calls",
    [(), (replace(LOOK, name="other"),), (LOOK, LOOK), (replace(LOOK, problem="no such tool"),)],
    ids=["none", "another", "one more", "not a call"],
)
def test_what_is_not_shown_as_a_call_stays_text(calls: tuple[ToolCall, ...]) -> None:
    assert "lookup" in text_html(Turn(index=0, observation="", response=WRITTEN, calls=calls))


@pytest.mark.parametrize(
    ("observation", "rest"),
    [
        ("tea: 4", ""),
        ("<tool_response>\ntea: 4\n</tool_response>", ""),
        ("tea: 4\nGo on.", "Go on."),
        ("The board.\ntea: 4", "The board.\ntea: 4"),
        ("tea: 5", "tea: 5"),
    ],
)
def test_a_result_stands_with_its_call_and_not_in_the_next_observation(
    observation: str, rest: str
) -> None:
    before = Turn(index=0, observation="", response="", calls=(LOOK,))
    assert beyond_results(observation, before) == rest
    assert beyond_results(observation, None) == observation


def test_the_results_of_several_calls_are_taken_in_their_order() -> None:
    calls = (LOOK, replace(LOOK, result="milk: 2"))
    before = Turn(index=0, observation="", response="", calls=calls)
    assert beyond_results("tea: 4\nmilk: 2", before) == ""
    swapped = "milk: 2\ntea: 4"
    assert beyond_results(swapped, before) == swapped
