"""Tool calls in hostile text: what is a call, what is not, and what it says about itself."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.text.replies import ParsedResponse, parse_response
from echoscope.text.tool_calls import (
    answer_action,
    call_action,
    find_calls,
    read_answer,
    read_call,
    read_problem,
    spell_call,
)

LOOK = '<tool_call>\n{"name": "lookup", "arguments": {"item": "tea"}}\n</tool_call>'
LLAMA = '{"name": "lookup", "parameters": {"item": "tea"}}'


def reply(text: str, **settings: object) -> ParsedResponse:
    plain = {"reasoning": True, "forced_think": True, "tool_format": "hermes"}
    return parse_response(text, **(plain | settings))


def test_a_call_after_the_reasoning_is_an_action() -> None:
    parsed = reply(f"I need a price.</think>{LOOK}")
    assert parsed.actions == ('lookup {"item": "tea"}',)
    assert parsed.is_well_formed
    assert parsed.reasoning_chars == (0, 15)
    assert parsed.answer_chars == (23, 23 + len(LOOK))


def test_an_answer_ends_the_task_and_is_one_action() -> None:
    assert reply("So.</think><answer>4 || 5</answer>").actions == ("answer 4 || 5",)
    assert reply("So.</think><answer> </answer>").actions == ()


def test_several_calls_and_words_before_them() -> None:
    parsed = reply(f"</think>Let me look.\n{LOOK}\n{LOOK.replace('tea', 'jam')}\n")
    assert [read_call(action) for action in parsed.actions] == [
        ("lookup", {"item": "tea"}),
        ("lookup", {"item": "jam"}),
    ]
    assert parsed.is_well_formed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"</think>{LOOK} and so on", "text after the tool call"),
        (f"</think>{LOOK}<answer>4</answer>", "text after the tool call"),
        (f"</think><answer>4</answer>{LOOK}", "a tag before the tool call"),
        (f"</think>{LOOK}, then{LOOK}", "text between two tool calls"),
        (f"a <answer> b</think>{LOOK}", "a tag inside the reasoning"),
    ],
)
def test_what_stands_beside_a_call_is_malformed_and_the_call_is_played(text, problem) -> None:
    parsed = reply(text)
    assert parsed.problem == problem
    assert parsed.actions[0] == 'lookup {"item": "tea"}'


def test_no_call_is_played_before_a_required_reasoning_is_complete() -> None:
    assert reply(f"still thinking {LOOK}").calls == ()
    missing = reply(LOOK, forced_think=False)
    assert (missing.problem, missing.actions, len(missing.calls)) == ("no <think>", (), 1)
    assert reply(LOOK, reasoning=False).is_well_formed


BAD = {
    "{": "the call is not JSON",
    "": "the call is not JSON",
    "[1]": "must be a JSON object",
    '{"arguments": {}}': 'needs a "name"',
    '{"name": "answer", "arguments": {}}': 'needs a "name"',
    '{"name": "a b", "arguments": {}}': 'needs a "name"',
    '{"name": ["x"]}': 'needs a "name"',
    '{"name": "f", "arguments": {"x": 1, "x": 2}}': "stands twice in one object",
    '{"name": "f", "arguments": {"x": NaN}}': "NaN is no JSON number",
    '{"name": "f", "arguments": {"x": 1e999}}': "not JSON compliant",
    '{"name": "f", "arguments": {"x": "\\ud800"}}': "lone surrogate",
    '{"name": "f", "arguments": {"x": ' + "9" * 5000 + "}}": "4300 digits",
    '{"name": "f", "arguments": {"x": ' + "[" * 100_000: "nested too deeply",
    "answer 4": "the call is not JSON",
}


@pytest.mark.parametrize("body", BAD)
def test_a_call_that_cannot_be_read_says_why_and_plays_nothing_else(body: str) -> None:
    (action,) = reply(f"</think><tool_call>{body}</tool_call>").actions
    assert BAD[body] in (read_problem(action) or "")
    assert read_call(action) is None
    assert read_answer(action) is None


def test_a_call_that_is_cut_off_says_so() -> None:
    (action,) = reply('</think><tool_call>{"name": "f"').actions
    assert read_problem(action) == "<tool_call> is never closed"


def test_no_answer_passes_for_a_call_and_no_call_for_an_answer() -> None:
    (action,) = reply('</think><answer>lookup {"item": "tea"}</answer>').actions
    assert read_call(action) is None
    assert read_answer(action) == 'lookup {"item": "tea"}'
    assert read_problem(answer_action("! no")) is None
    with pytest.raises(ValueError, match="no name of a tool"):
        call_action("answer", {})


@pytest.mark.parametrize("before", ["", "<|python_tag|>", "\n"])
def test_llamas_calls_stand_alone(before: str) -> None:
    parsed = reply(f"</think>{before}{LLAMA}", tool_format="llama")
    assert parsed.actions == ('lookup {"item": "tea"}',)
    assert parsed.is_well_formed


def test_llamas_calls_follow_one_another_after_a_semicolon() -> None:
    parsed = reply(f"</think>{LLAMA}; {LLAMA.replace('tea', 'jam')}", tool_format="llama")
    assert len(parsed.actions) == 2
    assert parsed.is_well_formed


def test_in_llamas_format_words_before_the_json_make_it_no_call() -> None:
    parsed = reply(f"</think>I call {LLAMA}", tool_format="llama")
    assert (parsed.calls, parsed.problem) == ((), "no <answer>")


def test_llamas_call_that_is_not_json_is_a_broken_call() -> None:
    (action,) = reply("</think><|python_tag|>lookup(tea)", tool_format="llama").actions
    assert "not JSON" in (read_problem(action) or "")


@pytest.mark.parametrize("tool_format", ["hermes", "llama"])
def test_a_spelled_call_is_read_back(tool_format) -> None:
    text = spell_call("lookup", {"item": 'a "b" \n é', "n": [1, {"x": None}]}, tool_format)
    (call,) = find_calls(text, 0, tool_format)
    assert json.loads(call.arguments) == {"item": 'a "b" \n é', "n": [1, {"x": None}]}
    assert call.chars == (0, len(text))


PIECES = ["<tool_call>", "</tool_call>", "{", "}", '"name"', ":", '"f"', ";", "<answer>", "x",
          "</answer>", "</think>", "<|python_tag|>", '"arguments"', ",", " ", "\ud800"]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=30), st.sampled_from(["hermes", "llama"]))
def test_any_text_gives_actions_of_one_of_three_kinds(pieces, tool_format) -> None:
    parsed = reply("".join(pieces), tool_format=tool_format)
    for action in parsed.actions:
        kinds = [read_call(action), read_answer(action), read_problem(action)]
        assert sum(kind is not None for kind in kinds) == 1
    assert parsed.is_well_formed == (not parsed.problem)


def test_ten_thousand_calls_are_read_in_one_pass() -> None:
    assert len(reply("</think>" + "<tool_call>{}</tool_call>" * 10_000).calls) == 10_000
    assert len(reply("</think>" + "{};" * 10_000, tool_format="llama").calls) == 10_000


# -- what other models write ---------------------------------------------------------------------

LOOKUP = ("lookup", {"item": "tea"})
IN_TAGS = {
    "arguments in a string": '{"name": "lookup", "arguments": "{\\"item\\": \\"tea\\"}"}',
    "OpenAI": '{"id": "1", "type": "function", "function": {"name": "lookup", '
    '"arguments": "{\\"item\\": \\"tea\\"}"}}',
    "Qwen3-Coder": "<function=lookup>\n<parameter=item>\ntea\n</parameter>\n</function>",
}


@pytest.mark.parametrize("body", IN_TAGS.values(), ids=IN_TAGS)
def test_engines_8_other_spellings_between_the_tags_are_the_same_call(body: str) -> None:
    parsed = reply(f"So.</think><tool_call>\n{body}\n</tool_call>")
    assert [read_call(action) for action in parsed.actions] == [LOOKUP]
    assert parsed.is_well_formed


@pytest.mark.parametrize("nothing", ["null", '""', '"{}"', "{}"])
def test_engines_8_no_arguments_may_be_null_or_an_empty_string(nothing: str) -> None:
    text = f'<tool_call>{{"name": "look", "arguments": {nothing}}}</tool_call>'
    assert find_calls(text, 0, "hermes")[0].action == "look {}"
    bare = f'{{"name": "look", "parameters": {nothing}}}'
    assert find_calls(bare, 0, "llama")[0].action == "look {}"


def test_engines_8_values_of_elements_are_json_where_they_read_as_it() -> None:
    text = (
        "<tool_call><function=order><parameter=item>\nblack tea\n</parameter>"
        '<parameter=count>3</parameter><parameter=sizes>["S", "M"]</parameter></function>'
        "</tool_call>"
    )
    (call,) = find_calls(text, 0, "hermes")
    assert read_call(call.action) == (
        "order",
        {"item": "black tea", "count": 3, "sizes": ["S", "M"]},
    )
    assert call.chars == (0, len(text))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<tool_call><function=f>x</function></tool_call>", "something between its parameters"),
        (
            "<tool_call><function=f><parameter=a>1</parameter><parameter=a>2</parameter>"
            "</function></tool_call>",
            "stands twice",
        ),
        ('<tool_call>{"name": "f", "arguments": "[1]"}</tool_call>', "must be a JSON object"),
        ('<tool_call>{"function": {"name": 3}}</tool_call>', "the name of a tool"),
    ],
)
def test_other_spellings_that_are_broken_say_why(text: str, problem: str) -> None:
    (call,) = find_calls(text, 0, "hermes")
    assert problem in call.problem


@given(
    st.lists(
        st.sampled_from(
            [
                "[",
                "]",
                "{",
                "}",
                ",",
                "f",
                '"',
                " ",
                '{"name": "f"}',
                "<tool_call>",
                "</tool_call>",
                "<function=f>",
                "</function>",
                "<parameter=a>",
                "</parameter>",
            ]
        ),
        max_size=30,
    )
)
def test_no_mixture_of_spellings_is_an_exception(parts: list[str]) -> None:
    text = "".join(parts)
    for tool_format in ("hermes", "llama"):
        ends = [call.chars for call in find_calls(text, 0, tool_format)]
        assert all(0 <= start <= end <= len(text) for start, end in ends)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(ends))
