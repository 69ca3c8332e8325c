"""Reasoning about a search: which sentence of the passages leads to the next step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from echoscope.core.warm_start.narrators import PlainNarrator, pick
from echoscope.text.tool_calls import read_answer, read_call

_BRACKETS = re.compile(r"(search|finish)\[(.*)\]", re.DOTALL)
_PASSAGE = re.compile(r"\[\d+\] (?:.+?: )?(.+)")
_SENTENCE = re.compile(r"(?<=\.)(?<!\b[A-Z]\.)(?<!\bSt\.) (?=[A-Z])")


class SearchNarrator(PlainNarrator):
    """Quotes the sentence that names what to search for next, or that holds the answer."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        action = plan[0]
        query, answer = _query(action), _answer(action)
        if query is not None:
            name, sentence = _named(query, observation)
            phrases: tuple[str, ...] = (
                f'"{sentence}" So I look for {name}.',
                f"I read: {sentence} Next I search for {name}.",
            )
            if not sentence:
                phrases = (
                    f"The question begins with {name}. I search for it.",
                    f"First I need a passage on {name}.",
                )
        elif answer is not None:
            sentence = _sentence_with(answer, observation)
            phrases = (
                f'"{sentence}" That is the answer.',
                f"I read: {sentence} So the answer is {answer}.",
            )
            if not sentence:
                phrases = (f"The passages say {answer}.", f"So the answer is {answer}.")
        else:
            return super().careful(observation, plan, rng)
        return pick(phrases, rng), action

    def careless(self, action: str, rng: np.random.Generator) -> str:
        return pick(("I am not sure. Let me try.", "No idea. I guess."), rng)


def _query(action: str) -> str | None:
    """What an action searches for, in either environment's spelling."""
    match, call = _BRACKETS.fullmatch(action), read_call(action)
    if match is not None and match[1] == "search":
        return match[2]
    return str(call[1]["query"]) if call is not None and "query" in call[1] else None


def _answer(action: str) -> str | None:
    match = _BRACKETS.fullmatch(action)
    return match[2] if match is not None and match[1] == "finish" else read_answer(action)


def _named(query: str, observation: str) -> tuple[str, str]:
    """The longest beginning of a query that a passage names, and the sentence that does.

    The whole query and "" where no passage names any of it.
    """
    query_words = query.split()
    for length in range(len(query_words), 0, -1):
        name = " ".join(query_words[:length])
        sentence = _sentence_with(name, observation)
        if sentence:
            return name, sentence
    return query, ""


def _sentence_with(name: str, observation: str) -> str:
    """The sentence of the passages with these words that is most like the question; "" for none."""
    whole = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
    asked = {*re.findall(r"\w+", observation.rpartition("Question: ")[2])}
    fitting = [text for text in _sentences(observation) if whole.search(text)]
    return max(fitting, key=lambda text: len(asked & {*re.findall(r"\w+", text)}), default="")


def _sentences(observation: str) -> Iterator[str]:
    for line in observation.splitlines():
        match = _PASSAGE.fullmatch(line)
        if match is not None:
            yield from _SENTENCE.split(match[1])
