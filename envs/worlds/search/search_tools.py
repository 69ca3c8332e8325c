"""SearchTools: the questions of `search_qa`, with a search tool."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from ...base import StepResult, Tool
from ..tools.tool_env import CommandTools, tool_of
from .bm25 import MAX_QUERY_CHARS
from .search_qa import SearchQa


class SearchTools(CommandTools):
    """A question of two or three hops, answered with a search tool.

    Description:
        The questions, passages and retrievers of `search_qa`; searches are tool calls.
    Observation:
        "Question: ...", then the result of each call: the passages that fit best, a line each.
    Actions:
        `search {"query": "Kyoto"}`, at most 400 characters, and `answer 81`. A policy calls tools
        in its own model's format.
    Rewards:
        For the answer: 1 if it equals a right one (without case, punctuation and articles), else
        its F1 if that is at least `min_f1`, else 0.
    Episode end:
        After the first answer.
    Success:
        The answer equals a right one. A partial reward is no success.
    Seeds:
        `seed` draws the question; `noise_seed` is not used.
    Requires:
        bm25s (`pip install -e '.[search]'`); with `retriever: http` a server.
    Example:
        >>> world = SearchTools()
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()]
        [0.0, 0.0, 1.0]
    """

    spec = replace(
        SearchQa.spec,
        id="search_tools",
        description="Answer questions of several hops with a search tool.",
    )
    inner = SearchQa
    _world: SearchQa
    commands: ClassVar[dict[str, str]] = {"search": "search[{query}]"}

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self._world.repeats_question = False

    def tools(self) -> tuple[Tool, ...]:
        told = f"The {self._config.results} passages that fit the words of the query best."
        query = {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
        return (tool_of("search", told, 1, query=query),)

    def instructions(self) -> str:
        return (
            "Answer the question from passages that you find with the search tool. Then answer "
            "with the name or number alone."
        )

    def finish(self, text: str) -> StepResult:
        return self._world.finish(text)
