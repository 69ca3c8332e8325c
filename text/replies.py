"""Response text to reasoning, answer and actions, as character spans of that very text.

The format is `<think>REASONING</think><answer>ACTION || ACTION</answer>`, with `<ans>` accepted for
`<answer>`. Tags are lower case and exact. Nothing is rewritten, so spans stay true to what was
sampled. Every function makes a fixed number of linear passes over the text, whatever it holds.

What is defined for text that breaks the format:

| text | reasoning | answer | actions played |
| --- | --- | --- | --- |
| reasoning never closed | to the end of the text | none | none |
| no `<think>` where it is not forced | none | the first answer block | none |
| answer never closed, or closed by the other tag | as written | to the end of the text | none |
| words outside the two blocks | as written | as written | those of the answer |
| a tag inside a block | up to the first closing tag | up to the first closing tag | those named |
| an answer that names no action | as written | as written | none |

All of these are not well-formed, and `problem` says why.

Where tools are declared, calls may stand in the place of the answer (see `tool_calls`). Words
before the first call are allowed, as models write them; words between two calls or after the last
are not. A reply with a call has no answer: its calls are played, and an answer beside them is
malformed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .tool_calls import CalledTool, ToolFormat, answer_action, find_calls

Span = tuple[int, int]
"""Half-open `[start, end)`."""

THINK_OPEN = "<think>"
THINK_CLOSE = "</think>"
ANSWER_TAGS = (("<answer>", "</answer>"), ("<ans>", "</ans>"))

_ANY_TAG = re.compile(r"</?(?:think|answer|ans)>")
_ANSWER_OPEN = re.compile(r"<(?:answer|ans)>")
_CLOSE_OF = dict(ANSWER_TAGS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedResponse:
    """Where reasoning and answer stand in a response, and the actions that the answer names."""

    reasoning_chars: Span | None
    answer_chars: Span | None
    """Of a reply with tool calls: from the first of them to the end of the last."""
    actions: tuple[str, ...]
    """Stripped and not empty; none unless a required reasoning and the answer are complete."""
    is_well_formed: bool
    problem: str
    """Why the response is not well-formed; empty if it is."""
    calls: tuple[CalledTool, ...] = ()
    """Tool calls, those that cannot be read among them."""


@dataclass(frozen=True, slots=True)
class _Block:
    """One tagged block: `outer` with its tags, `inner` without them."""

    inner: Span
    outer: Span
    is_closed: bool


def parse_response(
    text: str,
    *,
    reasoning: bool,
    forced_think: bool,
    action_separator: str | None = "||",
    tool_format: ToolFormat | None = None,
) -> ParsedResponse:
    """Find reasoning, answer and actions in a response.

    Args:
        text: the response as decoded, without its stop token. With `forced_think` it starts inside
            the reasoning: the opening tag was part of the prompt.
        reasoning: whether the format asks for `<think>...</think>` before the answer.
        forced_think: the prompt ended with `<think>`; has no meaning without `reasoning`.
        action_separator: what stands between two actions of one answer; None where an answer is
            one action, whatever it holds.
        tool_format: how the model spells tool calls; None where there are no tools. With tools,
            actions are spelled as `tool_calls` says, and an answer is one action.

    Never raises on any text.
    """
    think = _find_reasoning(text, forced_think) if reasoning else None
    is_reasoning_complete = not reasoning or (think is not None and think.is_closed)
    is_open_ended = think is not None and not think.is_closed
    start = 0 if think is None else think.outer[1]
    calls: tuple[CalledTool, ...] = ()
    if tool_format is not None and not is_open_ended:
        calls = find_calls(text, start, tool_format)
    actions: tuple[str, ...] = ()
    if calls:
        answer_chars: Span | None = (calls[0].chars[0], calls[-1].chars[1])
        if is_reasoning_complete:
            actions = tuple(call.action for call in calls)
        problem = _calling_problem(text, think, calls, is_required=reasoning)
    else:
        answer = None if is_open_ended else _find_answer(text, start)
        answer_chars = None if answer is None else answer.inner
        if is_reasoning_complete and answer is not None and answer.is_closed:
            actions = split_actions(text[slice(*answer.inner)], action_separator)
            if tool_format is not None and actions:
                actions = (answer_action(text[slice(*answer.inner)].strip()),)
        problem = _problem(text, think, answer, is_required=reasoning, has_actions=bool(actions))
    return ParsedResponse(
        reasoning_chars=None if think is None else think.inner,
        answer_chars=answer_chars,
        actions=actions,
        is_well_formed=not problem,
        problem=problem,
        calls=calls,
    )


def _calling_problem(
    text: str, think: _Block | None, calls: tuple[CalledTool, ...], *, is_required: bool
) -> str:
    """The first thing that is wrong with a reply that calls tools, empty if nothing is."""
    if is_required and think is None:
        return "no <think>"
    if think is not None and _ANY_TAG.search(text, *think.inner):
        return "a tag inside the reasoning"
    if think is not None and text[: think.outer[0]].strip():
        return "text before the reasoning"
    if _ANY_TAG.search(text, 0 if think is None else think.outer[1], calls[0].chars[0]):
        return "a tag before the tool call"
    ends = [call.chars[1] for call in calls]
    starts = [call.chars[0] for call in calls[1:]]
    if any(text[end:start].strip(" \t\r\n;") for end, start in zip(ends, starts, strict=False)):
        return "text between two tool calls"
    if text[ends[-1] :].strip(" \t\r\n;"):
        return "text after the tool call"
    return next((call.problem for call in calls if call.problem), "")


def split_actions(answer: str, action_separator: str | None = "||") -> tuple[str, ...]:
    """The actions of an answer: split at the separator, stripped, empty ones dropped."""
    whole = [answer] if action_separator is None else answer.split(action_separator)
    parts = (part.strip() for part in whole)
    return tuple(part for part in parts if part)


def _find_reasoning(text: str, forced_think: bool) -> _Block | None:
    """The reasoning block, None if a tag that must open it is missing."""
    if forced_think:
        return _block(text, 0, 0, THINK_CLOSE)
    start = text.find(THINK_OPEN)
    return None if start < 0 else _block(text, start, start + len(THINK_OPEN), THINK_CLOSE)


def _find_answer(text: str, start: int) -> _Block | None:
    """The first answer block at or after `start`."""
    opening = _ANSWER_OPEN.search(text, start)
    return None if opening is None else _block(text, *opening.span(), _CLOSE_OF[opening.group()])


def _block(text: str, start: int, inner_start: int, close_tag: str) -> _Block:
    """The block up to its closing tag, or to the end of the text."""
    close = text.find(close_tag, inner_start)
    if close < 0:
        return _Block((inner_start, len(text)), (start, len(text)), False)
    return _Block((inner_start, close), (start, close + len(close_tag)), True)


def _problem(
    text: str,
    think: _Block | None,
    answer: _Block | None,
    *,
    is_required: bool,
    has_actions: bool,
) -> str:
    """The first thing that is wrong with the format, empty if nothing is."""
    if is_required and think is None:
        return "no <think>"
    if think is not None and not think.is_closed:
        return "<think> is never closed"
    if answer is None:
        return "no <answer>"
    if not answer.is_closed:
        return "<answer> is never closed"
    if think is not None and _ANY_TAG.search(text, *think.inner):
        return "a tag inside the reasoning"
    if _ANY_TAG.search(text, *answer.inner):
        return "a tag inside the answer"
    before = (0, answer.outer[0]) if think is None else (0, think.outer[0])
    between = (0, 0) if think is None else (think.outer[1], answer.outer[0])
    for name, span in (
        ("before the reasoning" if think is not None else "before the answer", before),
        ("between reasoning and answer", between),
        ("after the answer", (answer.outer[1], len(text))),
    ):
        if text[slice(*span)].strip():
            return f"text {name}"
    return "" if has_actions else "the answer names no action"
