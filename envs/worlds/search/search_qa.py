"""SearchQa: questions that need several passages, each of which has to be searched for."""

from __future__ import annotations

import re

from ...base import EnvSpec, Observation, StepResult
from .bm25 import MAX_QUERY_CHARS
from .episode import SearchConfig, SearchTask
from .scoring import MAX_ANSWER_CHARS

_MOST_CHARS = {"search": MAX_QUERY_CHARS, "finish": MAX_ANSWER_CHARS}
_ACTION = re.compile(r"(search|finish)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)
_MAX_ACTION_CHARS = 2 * max(_MOST_CHARS.values())


class SearchQa(SearchTask):
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

    _question = ""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._question = self._episode.begin(seed, noise_seed)
        return self.observe()

    def step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip()) if len(action) <= _MAX_ACTION_CHARS else None
        word, content = (match[1].lower(), match[2].strip()) if match else ("search", "")
        if self.is_over or not 0 < len(content) <= _MOST_CHARS[word]:
            self._episode.has_failed = False
            hint = "The episode is over." if self.is_over else _hint(self._question)
            told = self.observe(f"{self.invalid_notice(action)} {hint}")
            return self.result(0.0, told, is_valid=False, is_effective=False)
        if word == "finish":
            told = self.observe(self._episode.finish(content))
            return self.result(self._episode.reward, told)
        text, has_news = self._episode.search(content)
        # A window over the conversation may have dropped the question.
        told = self.observe(f"{text}\n{self._question}")
        return self.result(0.0, told, is_effective=has_news)

    def instructions(self) -> str:
        number = self._episode.config.results
        shown = "the passage that fits" if number == 1 else f"the {number} passages that fit"
        return (
            "Answer the question from passages that you search for. Actions: search[words] shows "
            f"{shown} the words best; finish[answer] gives the answer and ends the episode. "
            "Answer with the name or number alone."
        )

    def search_action(self, query: str) -> str:
        return f"search[{query}]"

    def final_action(self, answer: str) -> str:
        return f"finish[{answer}]"

    def observe(self, text: str = "") -> Observation:
        return Observation(text=text or self._question, frame=self._episode.card())


def _hint(question: str) -> str:
    return (
        f"Write search[words], at most {MAX_QUERY_CHARS} characters, or finish[answer], at most "
        f"{MAX_ANSWER_CHARS}.\n{question}"
    )
