"""SearchTools: the questions of `search_qa`, with a search tool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from echoscope.text.tool_calls import answer_action, call_action

from ...base import EnvSpec, Message, Observation, StepResult, Tool
from ..tools.tool_env import ToolEnv
from .bm25 import MAX_QUERY_CHARS
from .episode import SearchConfig, SearchEpisode


class SearchTools(ToolEnv):
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

    def __init__(self, config: SearchConfig | None = None) -> None:
        config = SearchConfig() if config is None else config
        super().__init__(config)
        self._episode = SearchEpisode(config)
        self._tools = (_search_tool(config.results),)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        text = self._episode.begin(seed, noise_seed)
        return Observation(
            text=text,
            frame=self._episode.card(),
            messages=(Message(role="user", content=text),),
        )

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
        return self._tools

    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        outcome = self._episode.search(str(arguments["query"]))
        return self._result(outcome.text, outcome.has_news, outcome.has_failed)

    def answer(self, text: str) -> StepResult:
        return self._result(self._episode.finish(text), has_effect=True)

    def solve(self) -> list[str] | None:
        """A search for each passage of evidence that was not shown yet, then the answer."""
        queries = self._episode.next_queries
        if queries is None or self._episode.is_over:
            return queries
        calls = [call_action("search", {"query": query}) for query in queries]
        return [*calls, answer_action(self._episode.question.answers[0])]

    def guesses(self) -> tuple[str, ...]:
        """The question itself as a query, and an answer that is none."""
        query = self._episode.question.text[:MAX_QUERY_CHARS]
        return (call_action("search", {"query": query}), answer_action("unknown"))

    def task_key(self) -> str:
        """The question; `search_qa` gives the same key."""
        return self._episode.task_key

    @property
    def num_tasks(self) -> int:
        """The different questions."""
        return len(self._episode.questions)

    @property
    def is_over(self) -> bool:
        return self._episode.is_over

    @property
    def is_solved(self) -> bool:
        return self._episode.is_solved

    def _result(self, text: str, has_effect: bool, has_failed: bool = False) -> StepResult:
        role: Any = "user" if self.is_over else "tool"
        message = Message(role=role, name="" if self.is_over else "search", content=text)
        return StepResult(
            observation=Observation(text=text, frame=self._episode.card(), messages=(message,)),
            reward=self._episode.reward,
            terminated=self.is_over,
            success=self.is_solved,
            is_valid=True,
            is_effective=has_effect,
            info={**self._episode.info, "search_failed": float(has_failed)},
        )


def _search_tool(results: int) -> Tool:
    return Tool(
        name="search",
        description=f"The {results} passages that fit the words of the query best.",
        parameters={
            "type": "object",
            "properties": {
                "query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_CHARS}
            },
            "required": ["query"],
        },
    )
