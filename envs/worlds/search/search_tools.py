"""SearchTools: the questions of `search_qa`, with a search tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from echoscope.text.tool_calls import answer_action, call_action

from ...base import EnvSpec, Observation, StepResult, Tool
from ..tools.tool_env import ToolEnv, spoken, tool_of
from .bm25 import MAX_QUERY_CHARS
from .episode import SearchConfig, SearchTask


class SearchTools(SearchTask, ToolEnv):
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
        >>> world = SearchTools(SearchConfig(hops=2))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()]
        [0.0, 0.0, 1.0]
    """

    spec = EnvSpec(
        id="search_tools",
        entry_point=f"{__name__}:SearchTools",
        config_type=SearchConfig,
        max_turns=6,
        max_actions_per_turn=1,
        description="Answer questions of several hops with a search tool.",
        requires=("bm25s",),
        extra="search",
    )

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return spoken(self._episode.begin(seed, noise_seed), self._episode.card())

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        if result.observation.frame is not None:
            return result
        # A call that is refused leaves the picture as it was.
        return replace(result, observation=replace(result.observation, frame=self._episode.card()))

    def instructions(self) -> str:
        return (
            "Answer the question from passages that you find with the search tool. Then answer "
            "with the name or number alone."
        )

    def tools(self) -> tuple[Tool, ...]:
        number = self._episode.config.results
        query = {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
        return (
            tool_of(
                "search",
                f"The {number} passages that fit the words of the query best.",
                1,
                query=query,
            ),
        )

    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        text, has_news = self._episode.search(str(arguments["query"]))
        told = spoken(text, self._episode.card(), tool=name)
        return self.result(0.0, told, is_effective=has_news)

    def answer(self, text: str) -> StepResult:
        told = self._episode.finish(text)
        return self.result(self._episode.reward, spoken(told, self._episode.card()))

    def search_action(self, query: str) -> str:
        return call_action("search", {"query": query})

    def final_action(self, answer: str) -> str:
        return answer_action(answer)
