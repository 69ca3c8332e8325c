"""SearchQa: questions that need several passages, each of which has to be searched for."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from echoscope.text.pictures import card_frame

from ...base import EnvSpec, EnvUnavailableError, Observation, StepResult, hash_task, shorten
from ...params import require, require_within
from ..remote.http_client import HttpError
from ..rows import cached_by_files
from ..task_env import TaskEnv, drawn
from .bm25 import MAX_QUERY_CHARS
from .multi_hop import MADE_QUESTIONS, QuestionFile, read_questions
from .passages import (
    MADE_PASSAGES,
    HttpRetriever,
    PassageIndex,
    plain_text,
    read_passages,
)
from .scoring import MAX_ANSWER_CHARS, AnswerScore, judge

_MOST_CHARS = {"search": MAX_QUERY_CHARS, "finish": MAX_ANSWER_CHARS}
_ACTION = re.compile(r"(search|finish)\s*\[(.*)\]", re.DOTALL | re.IGNORECASE)
_MAX_ACTION_CHARS = 2 * max(_MOST_CHARS.values())
_HINT = (
    f"Write search[words], at most {MAX_QUERY_CHARS} characters, or finish[answer], at most "
    f"{MAX_ANSWER_CHARS}."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchConfig:
    """Source and limits of `search_qa` and `search_tools`.

    `data`: a file of questions; null takes the made ones that ship. HotpotQA's JSON or Parquet and
    MuSiQue's JSON lines bring their passages. Rows of `question` with `golden_answers` (Search-R1),
    `answer`, `answers` or `ground_truth` need passages from elsewhere: `corpus` or a server.
    `max_questions`: how many of its first questions are used. `hops`: only questions with so many
    passages of evidence. `corpus`: a file of passages of up to 1 GiB, rows of `contents` (the title
    in the first line), or of `title` and `text`; null takes those that came with the questions, or
    the ones that ship. `retriever`: `bm25` searches the corpus here, `http` asks the server at
    `url`, such as http://127.0.0.1:8000/retrieve, in the shape `protocol` (of Search-R1, or of
    RAGEN), and waits `timeout_s` at most. `results`: passages a search shows. `max_chars`:
    characters of each passage. `min_f1`: from which F1 on an answer that is not exact earns its F1.
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


class SearchQa(TaskEnv[SearchConfig]):
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
        config_type=SearchConfig,
        max_turns=6,
        description="Answer questions of several hops by searching passages.",
        requires=("bm25s",),
        extra="search",
    )
    is_over = is_solved = False
    repeats_question = True
    """After a search: a window over the conversation may have dropped the question."""

    def __init__(self, config: SearchConfig | None = None) -> None:
        super().__init__(config)
        data, hops = self._config.data, self._config.hops
        source = read_questions(data or MADE_QUESTIONS, self._config.max_questions)
        self._questions = tuple(
            each for each in source.questions if hops is None or len(each.hops) == hops
        )
        if not self._questions:
            raise EnvUnavailableError(
                f"{data or 'the shipped file'} has no question with {hops} passages of evidence"
            )
        self._retriever = _retriever(self._config, source)
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        self._question = self._questions[drawn(seed, len(self._questions))]
        self._asking = f"Question: {self._question.text}"
        self.is_over = self.is_solved = False
        self._judgement = AnswerScore(False, 0.0)
        self._num_searches, self._has_failed = 0, False
        self._seen: set[str] = set()
        self._asked: set[str] = set()
        self._lines: list[str] = []
        """What the last search and the answer gave, for people."""

    def step(self, action: str) -> StepResult:
        self._has_failed = False
        match = _ACTION.fullmatch(action.strip()) if len(action) <= _MAX_ACTION_CHARS else None
        word, content = (match[1].lower(), match[2].strip()) if match else ("search", "")
        if self.is_over or not 0 < len(content) <= _MOST_CHARS[word]:
            hint = "The episode is over." if self.is_over else f"{_HINT}\n{self._asking}"
            told = self.observe(f"{self.invalid_notice(action)} {hint}")
            return self.result(0.0, told, is_valid=False, is_effective=False)
        if word == "finish":
            return self.finish(content)
        text, has_news = self._search(content)
        told = self.observe(f"{text}\n{self._asking}" if self.repeats_question else text)
        return self.result(0.0, told, is_effective=has_news)

    def finish(self, answer: str) -> StepResult:
        """Judge an answer, which ends the episode."""
        given, right = plain_text(answer, MAX_ANSWER_CHARS), self._question.answers[0]
        judged = self._judgement = judge(answer, self._question.answers)
        self.is_over, self.is_solved = True, judged.is_exact
        self._has_failed = False
        verdict = "right" if judged.is_exact else f"wrong, F1 {judged.f1:.2f}"
        self._lines.append(f"Answer: {_beginning(given)} ({verdict})")
        if judged.is_exact:
            return self.result(1.0, self.observe("Right."))
        self._lines.append(f"Right answer: {right}")
        reward = judged.f1 if judged.f1 >= self._config.min_f1 else 0.0
        return self.result(reward, self.observe(f"Wrong. The answer is {right}."))

    def _search(self, query: str) -> tuple[str, bool]:
        """What a search shows, and whether a passage is new.

        A retriever that fails is answered in words, and can be asked again.
        """
        self._num_searches += 1
        short = plain_text(query, MAX_QUERY_CHARS)
        head = f"Search {self._num_searches}: {short}"
        try:
            passages = self._retriever.search(query, self._config.results)
        except HttpError as error:
            self._has_failed = True
            failure = f"The search failed: the retriever {error}."
            self._lines = [head, _beginning(failure)]
            return failure, False
        self._asked.add(short.casefold())
        lines = [
            f"[{number}] {passage.shown(self._config.max_chars)}"
            for number, passage in enumerate(passages, start=1)
        ]
        self._lines = [head, *map(_beginning, lines)]
        names = {name for passage in passages for name in (passage.id, passage.title) if name}
        has_news = not names <= self._seen
        self._seen |= names
        return "\n".join(lines) or "The search gave no passage.", has_news

    def instructions(self) -> str:
        number = self._config.results
        which = "the passage that fits" if number == 1 else f"the {number} passages that fit"
        return (
            "Answer the question from passages that you search for. Actions: search[words] shows "
            f"{which} the words best; finish[answer] gives the answer and ends the episode. "
            "Answer with the name or number alone."
        )

    def plan(self) -> list[str]:
        """A search for each passage of evidence that was not shown yet, then the answer.

        A query that was asked is not asked again.
        """
        queries = [
            hop.query
            for hop in self._question.hops
            if hop.passage not in self._seen and hop.query.casefold() not in self._asked
        ]
        searches = [f"search[{query}]" for query in queries]
        return [*searches, f"finish[{self._question.answers[0]}]"]

    def guesses(self) -> tuple[str, ...]:
        return (f"search[{self._question.text[:MAX_QUERY_CHARS]}]", "finish[unknown]")

    def task_key(self) -> str:
        """The question, whichever of the two worlds asks it."""
        return hash_task("search_qa", self._question.text)

    @property
    def num_tasks(self) -> int:
        return len(self._questions)

    def info(self) -> dict[str, float]:
        return {
            "searches": float(self._num_searches),
            "exact_match": float(self._judgement.is_exact),
            "f1": self._judgement.f1,
            "search_failed": float(self._has_failed),
        }

    def observe(self, text: str = "") -> Observation:
        frame = card_frame("Search", [self._asking, *self._lines])
        return Observation(text=text or self._asking, frame=frame)


def _beginning(text: str) -> str:
    """The beginning of a line, for people."""
    return text if len(text) <= 100 else f"{text[:100]} ..."


def _retriever(config: SearchConfig, source: QuestionFile) -> PassageIndex | HttpRetriever:
    if config.url is not None:
        return HttpRetriever(config.url, protocol=config.protocol, timeout_s=config.timeout_s)
    if config.corpus is not None or config.data is None:
        return _file_index(config.corpus or MADE_PASSAGES)
    if not source.passages:
        raise EnvUnavailableError(
            f"{shorten(config.data, 200)} brings no passages along: name a file of them with "
            "corpus, or a server with retriever: http"
        )
    return _passage_index(source.passages)


@cached_by_files(4)
def _file_index(path: str) -> PassageIndex:
    return PassageIndex(read_passages(path))


_passage_index = lru_cache(maxsize=2)(PassageIndex)
