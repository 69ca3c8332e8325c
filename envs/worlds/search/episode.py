"""One question, its searches and its answer: what `search_qa` and `search_tools` share."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, Protocol

from ...base import EnvUnavailableError, hash_task, shorten
from ...frames import card_frame
from ...params import require, require_within
from ..rows import cached_by_files
from ..task_env import TaskEnv, task_generator
from .bm25 import MAX_QUERY_CHARS
from .http_retriever import HttpRetriever, RetrieverError
from .multi_hop import MADE_QUESTIONS, QuestionFile, read_questions
from .passages import MADE_PASSAGES, Passage, PassageIndex, plain_text, read_passages
from .scoring import MAX_ANSWER_CHARS, Judgement, judge


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Source and limits of `search_qa` and `search_tools`.

    `data`: a file of questions, as HotpotQA, MuSiQue or Search-R1 write them; null takes the made
    ones that ship.
    `max_questions`: how many of its first questions are used. `hops`: only questions with so many
    passages of evidence. `corpus`: a file of passages; null takes those that came with the
    questions, or the ones that ship. `retriever`: `bm25` searches the corpus here, `http` asks the
    server at `url` in the shape `protocol`, and waits `timeout_s` at most. `results`: passages a
    search shows. `max_chars`: characters of each passage. `min_f1`: from which F1 on an answer that
    is not exact earns its F1.
    """

    data: str | None = None
    max_questions: int = 20_000
    hops: int | None = None
    corpus: str | None = None
    retriever: Literal["bm25", "http"] = "bm25"
    url: str | None = None
    protocol: Literal["search_r1", "ragen"] = "search_r1"
    timeout_s: float = 10.0
    results: int = 3
    max_chars: int = 500
    min_f1: float = 0.3

    def __post_init__(self) -> None:
        require_within(self, max_questions=(1, math.inf), hops=(1, math.inf), results=(1, 50))
        require_within(self, max_chars=(20, 10_000), timeout_s=(0.1, 600))
        require(0 < self.min_f1 <= 1, f"min_f1 is {self.min_f1}, but must lie above 0, at most 1")
        is_http = self.retriever == "http"
        require(
            is_http == (self.url is not None),
            "retriever: http needs a url, such as http://127.0.0.1:8000/retrieve"
            if is_http
            else "url is only used with retriever: http",
        )
        require(
            not is_http or self.corpus is None,
            "corpus is only used with retriever: bm25: the server at url has its own",
        )


class Retriever(Protocol):
    """What finds passages."""

    def search(self, query: str, most: int) -> tuple[Passage, ...]:
        """The passages that fit a query best, at most `most`."""


class SearchEpisode:
    """The state of an episode, whatever the form of its actions.

    Raises:
        EnvUnavailableError: a file cannot be read, no question is left, or no corpus is given.
    """

    def __init__(self, config: SearchConfig) -> None:
        self.config = config
        source = read_questions(config.data or str(MADE_QUESTIONS), config.max_questions)
        self.questions = tuple(
            question
            for question in source.questions
            if config.hops is None or len(question.hops) == config.hops
        )
        if not self.questions:
            raise EnvUnavailableError(
                f"{config.data or 'the shipped file'} has no question with {config.hops} passages "
                "of evidence"
            )
        self.retriever: Retriever = _retriever(config, source)
        self.question = self.questions[0]
        self.judgement: Judgement | None = None
        self.num_searches = 0
        self.has_failed = False
        """The retriever gave no proper answer to the last action."""
        self._seen: set[str] = set()
        self._asked: set[str] = set()
        self._last_query = ""
        self._last_lines: list[str] = []
        self._answer = ""

    def begin(self, seed: int, noise_seed: int) -> str:
        """Draw the question; returns the first observation's text."""
        rng = task_generator(seed, noise_seed)
        self.question = self.questions[int(rng.integers(len(self.questions)))]
        self.judgement, self.num_searches, self.has_failed = None, 0, False
        self._seen, self._asked = set(), set()
        self._last_query, self._last_lines, self._answer = "", [], ""
        return f"Question: {self.question.text}"

    def search(self, query: str) -> tuple[str, bool]:
        """What a search shows, and whether a passage is new.

        A retriever that fails is answered in words, and can be asked again.
        """
        self.num_searches += 1
        self._last_query = plain_text(query, MAX_QUERY_CHARS)
        try:
            passages = self.retriever.search(query, self.config.results)
        except RetrieverError as error:
            self.has_failed = True
            self._last_lines = [f"The search failed: the retriever {error}."]
            return self._last_lines[0], False
        self.has_failed = False
        self._asked.add(self._last_query.casefold())
        self._last_lines = [
            f"[{number}] {passage.shown(self.config.max_chars)}"
            for number, passage in enumerate(passages, start=1)
        ]
        names = {name for passage in passages for name in (passage.id, passage.title) if name}
        has_news = not names <= self._seen
        self._seen |= names
        text = "\n".join(self._last_lines) or "The search gave no passage."
        return text, has_news

    def finish(self, answer: str) -> str:
        """Judge the answer, which ends the episode; returns what the policy is told."""
        self._answer, self.has_failed = plain_text(answer, MAX_ANSWER_CHARS), False
        self.judgement = judge(answer, self.question.answers)
        if self.judgement.is_exact:
            return "Right."
        return f"Wrong. The answer is {self.question.answers[0]}."

    @property
    def is_over(self) -> bool:
        """Whether an answer was given."""
        return self.judgement is not None

    @property
    def is_solved(self) -> bool:
        """Whether the answer was exactly right."""
        return self.judgement is not None and self.judgement.is_exact

    @property
    def reward(self) -> float:
        """Of the answer: 1 for an exact one, F1 from `min_f1` on, else 0."""
        if self.judgement is None:
            return 0.0
        if self.judgement.is_exact:
            return 1.0
        return self.judgement.f1 if self.judgement.f1 >= self.config.min_f1 else 0.0

    @property
    def info(self) -> dict[str, float]:
        """Number of searches, how well the answer fits, and whether the retriever failed."""
        judgement = self.judgement or Judgement(False, 0.0)
        return {
            "searches": float(self.num_searches),
            "exact_match": float(judgement.is_exact),
            "f1": judgement.f1,
            "search_failed": float(self.has_failed),
        }

    @property
    def next_queries(self) -> list[str] | None:
        """The scripted searcher's: one for each passage of evidence that was not shown yet.

        None after a wrong answer. A query that was asked is not asked again.
        """
        if self.is_over:
            return [] if self.is_solved else None
        return [
            hop.query
            for hop in self.question.hops
            if hop.passage not in self._seen and hop.query.casefold() not in self._asked
        ]

    @property
    def answer(self) -> str:
        """The right answer that is told."""
        return self.question.answers[0]

    def card(self) -> str:
        """The frame: the question, the last search with its passages, the answer."""
        lines = [f"Question: {self.question.text}"]
        if self.num_searches:
            lines += [
                f"Search {self.num_searches}: {self._last_query}",
                *map(_beginning, self._last_lines),
            ]
        if self.judgement is not None:
            verdict = "right" if self.is_solved else f"wrong, F1 {self.judgement.f1:.2f}"
            lines.append(f"Answer: {_beginning(self._answer)} ({verdict})")
            if not self.is_solved:
                lines.append(f"Right answer: {self.question.answers[0]}")
        return card_frame("Search", lines)


class SearchTask(TaskEnv):
    """What both worlds of searching share: the episode, its end, and the question as the task."""

    def __init__(self, config: SearchConfig | None = None) -> None:
        config = SearchConfig() if config is None else config
        super().__init__(config)
        self._episode = SearchEpisode(config)

    def solve(self) -> list[str] | None:
        """A search for each passage of evidence that was not shown yet, then the answer."""
        queries = self._episode.next_queries
        if queries is None or self.is_over:
            return queries
        return [*map(self.search_action, queries), self.final_action(self._episode.answer)]

    def guesses(self) -> tuple[str, ...]:
        """The question itself as a query, and an answer that is none."""
        query = self._episode.question.text[:MAX_QUERY_CHARS]
        return (self.search_action(query), self.final_action("unknown"))

    @abstractmethod
    def search_action(self, query: str) -> str:
        """The action that searches."""

    @abstractmethod
    def final_action(self, answer: str) -> str:
        """The action that answers."""

    def task_key(self) -> str:
        """The question, whichever of the two worlds asks it."""
        return hash_task("search_qa", self._episode.question.text)

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

    def info(self) -> dict[str, float]:
        return self._episode.info


def _beginning(text: str, most: int = 100) -> str:
    """The beginning of a line, for people."""
    return text if len(text) <= most else f"{text[:most]} ..."


def _retriever(config: SearchConfig, source: QuestionFile) -> Retriever:
    if config.url is not None:
        return HttpRetriever(config.url, protocol=config.protocol, timeout_s=config.timeout_s)
    if config.corpus is not None or config.data is None:
        return _file_index(str(config.corpus or MADE_PASSAGES))
    if not source.passages:
        raise EnvUnavailableError(
            f"{shorten(config.data, 200)} brings no passages along: name a file of them with "
            "corpus, or a server with retriever: http"
        )
    return _passage_index(source.passages)


@cached_by_files(4)
def _file_index(path: str) -> PassageIndex:
    return PassageIndex(read_passages(path))


@lru_cache(maxsize=2)
def _passage_index(passages: tuple[Passage, ...]) -> PassageIndex:
    return PassageIndex(passages)
