"""Reasoning about a search: it quotes what the observation says, and leads to the action."""

from __future__ import annotations

import re

import numpy as np
import pytest

from echoscope.core.warm_start.demonstrations import Lesson, demonstrate
from echoscope.core.warm_start.run import BARE_CONTEXT
from echoscope.envs import registry
from echoscope.envs.settings import EnvGroup
from examples.narrators import narrator_of

pytest.importorskip("bm25s")
ITALY = (
    "[1] Siracusa: Siracusa lies in Italy. It has 121,605 inhabitants.\n"
    "[2] St. Louis: St. Louis lies in Missouri, United States.\n"
    "Question: What is the capital of the country where Siracusa lies?"
)


def reasonings(observation: str, action: str) -> set[str]:
    narrator = narrator_of("search_qa")
    rng = np.random.default_rng(0)
    return {narrator.careful(observation, [action], rng)[0] for _ in range(20)}


@pytest.mark.parametrize(
    ("search", "finish"),
    [("search[{}]", "finish[{}]"), ('search {{"query": "{}"}}', "answer {}")],
)
def test_the_words_of_each_step(search: str, finish: str) -> None:
    assert reasonings("Question: Where?", search.format("St. Louis")) == {
        "The question begins with St. Louis. I search for it.",
        "First I need a passage on St. Louis.",
    }
    assert reasonings(ITALY, search.format("Italy country capital currency")) == {
        '"Siracusa lies in Italy." So I look for Italy.',
        "I read: Siracusa lies in Italy. Next I search for Italy.",
    }
    assert reasonings(ITALY, finish.format("121,605")) == {
        '"It has 121,605 inhabitants." That is the answer.',
        "I read: It has 121,605 inhabitants. So the answer is 121,605.",
    }
    assert reasonings(ITALY, finish.format("Rome")) == {
        "The passages say Rome.",
        "So the answer is Rome.",
    }


def test_of_several_sentences_the_one_most_like_the_question_is_quoted() -> None:
    observation = (
        "[1] Hong Kong: Hong Kong is a country. The capital of Hong Kong is Hong Kong.\n"
        "[2] St. Croix: St. Croix lies in U.S. Virgin Islands. It is warm.\n"
        "Question: What is the capital of the country where Wan Chai lies?"
    )
    assert '"The capital of Hong Kong is Hong Kong." That is the answer.' in reasonings(
        observation, "finish[Hong Kong]"
    )
    assert (
        '"St. Croix lies in U.S. Virgin Islands." So I look for U.S. Virgin Islands.'
        in reasonings(observation, "search[U.S. Virgin Islands country]")
    )


@pytest.mark.parametrize("env_id", ["search_qa", "search_tools"])
def test_every_later_step_of_the_shipped_questions_quotes_a_sentence(env_id: str) -> None:
    world, narrator = registry.make(env_id), narrator_of(env_id)
    rng = np.random.default_rng(0)
    quoted = steps = 0
    for seed in range(50):
        observation = world.reset(seed, 0).text
        plan = world.solve() or []
        while plan:
            reasoning, action = narrator.careful(observation, plan, rng)
            quotes = re.findall(r'(?:^"|^I read: )(.+?)(?:"|\.) (?:So|Next|That)', reasoning)
            if "Question" not in observation[:8]:
                steps += 1
                quoted += bool(quotes) and quotes[0] in observation
            observation = world.step(action).observation.text
            plan = world.solve() or []
    assert steps > 100
    assert quoted >= 0.9 * steps


@pytest.mark.parametrize("env_id", ["search_qa", "search_tools"])
def test_a_careful_expert_always_succeeds_and_a_careless_one_seldom(env_id: str) -> None:
    group = EnvGroup(env=env_id, max_turns=6)
    share = {}
    for careful in (1.0, 0.0):
        lesson = Lesson(
            group=group, context=BARE_CONTEXT, episodes=20, careful=careful, nonsense=0.0
        )
        episodes = demonstrate(lesson, seed=3, narrator_of=narrator_of)
        share[careful] = np.mean([bool(episode.success) for episode in episodes])
    assert share[1.0] == 1.0
    assert share[0.0] < 0.2
