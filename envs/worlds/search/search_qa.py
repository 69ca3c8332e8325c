"""SearchQa: questions that need several passages, each of which has to be searched for."""

from __future__ import annotations

import re

from ...base import EnvSpec, Observation, StepResult, TextEnv
from .bm25 import MAX_QUERY_CHARS
from .episode import SearchConfig, SearchEpisode
from .scoring import MAX_ANSWER_CHARS

_MOST_CHARS = {"search": MAX_QUERY_CHARS, "finish": MAX_ANSWER_CHARS}
_ACTION = re.compile(r"(search|finish)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)
_MAX_ACTION_CHARS = 2 * max(_MOST_CHARS.values())


class SearchQa(TextEnv):
    """A question of two or three hops, answered by searching passages.

    Description:
        No single passage has the answer: the first names the place that the second is about. Ships
        3,500 questions over 9,741 passages, made from GeoNames; a file gives its own, in the shape
        of HotpotQA or Search-R1. BM25 searches here, or a retrieval server over HTTP.
    Observation:
        "Question: ..."; after a search the passages that fit best, a line each, and the question
        again; after an answer "Right." or the right one. "The search failed: ..." if a server gave
        no proper answer.
    Actions:
        `search[words]` and `finish[answer]`, at most 400 and 500 characters. A search that fails at
        the server is a valid action without an effect.
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
        >>> world = SearchQa(SearchConfig(hops=2))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()]
        [0.0, 0.0, 1.0]
    """

    spec = EnvSpec(
        id="search_qa",
        entry_point=f"{__name__}:SearchQa",
        config_type=SearchConfig,
        max_turns=6,
        max_actions_per_turn=1,
        description="Answer questions of several hops by searching passages.",
        requires=("bm25s",),
        extra="search",
    )

    def __init__(self, config: SearchConfig | None = None) -> None:
        config = SearchConfig() if config is None else config
        super().__init__(config)
        self._episode = SearchEpisode(config)
        self._question = ""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._question = self._episode.begin(seed, noise_seed)
        return Observation(text=self._question, frame=self._episode.card())

    def step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip()) if len(action) <= _MAX_ACTION_CHARS else None
        word, content = (match[1].lower(), match[2].strip()) if match else ("search", "")
        if self._episode.is_over or not 0 < len(content) <= _MOST_CHARS[word]:
            hint = "The episode is over." if self._episode.is_over else _hint(self._question)
            return self._result(f"{self.invalid_notice(action)} {hint}", False)
        if word == "finish":
            news = self._episode.finish(content)
            return self._result(news, True, self._episode.reward, True)
        outcome = self._episode.search(content)
        # A window over the conversation may have dropped the question.
        text = f"{outcome.text}\n{self._question}"
        return self._result(text, True, has_effect=outcome.has_news, has_failed=outcome.has_failed)

    def instructions(self) -> str:
        number = self._episode.config.results
        shown = "the passage that fits" if number == 1 else f"the {number} passages that fit"
        return (
            "Answer the question from passages that you search for. Actions: search[words] shows "
            f"{shown} the words best; finish[answer] gives the answer and ends the episode. "
            "Answer with the name or number alone."
        )

    def solve(self) -> list[str] | None:
        """A search for each passage of evidence that was not shown yet, then the answer."""
        queries = self._episode.next_queries
        if queries is None or self._episode.is_over:
            return queries
        searches = [f"search[{query}]" for query in queries]
        return [*searches, f"finish[{self._episode.question.answers[0]}]"]

    def guesses(self) -> tuple[str, ...]:
        """The question itself as a search, and an answer that is none."""
        return (f"search[{self._episode.question.text[:MAX_QUERY_CHARS]}]", "finish[unknown]")

    def task_key(self) -> str:
        """The question; `search_tools` gives the same key."""
        return self._episode.task_key

    @property
    def num_tasks(self) -> int:
        """The different questions."""
        return len(self._episode.questions)

    def _result(
        self,
        text: str,
        is_valid: bool,
        reward: float = 0.0,
        has_effect: bool = False,
        has_failed: bool = False,
    ) -> StepResult:
        return StepResult(
            observation=Observation(text=text, frame=self._episode.card()),
            reward=reward,
            terminated=self._episode.is_over,
            success=self._episode.is_solved,
            is_valid=is_valid,
            is_effective=has_effect,
            info={**self._episode.info, "search_failed": float(has_failed)},
        )


def _hint(question: str) -> str:
    return (
        f"Write search[words], at most {MAX_QUERY_CHARS} characters, or finish[answer], at most "
        f"{MAX_ANSWER_CHARS}.\n{question}"
    )
