"""Which pairs of prompt and reasoning are drawn. One character of a response is one token here."""

from __future__ import annotations

import collections
from dataclasses import replace

import numpy as np
import pytest
from letter_tokens import TableScorer, batch, decode, encode, episode, turn

from echoscope.diagnostics.config import InformationConfig
from echoscope.diagnostics.measure.information.cross_scores import CrossScores, score_draw
from echoscope.diagnostics.measure.information.estimate import estimate
from echoscope.diagnostics.measure.information.pairs import (
    draw_all_turns,
    draw_first_turn,
    sampled_reasoning,
)
from echoscope.store.records import FinishReason, Trajectory, Turn


def config(**changes) -> InformationConfig:
    return InformationConfig(**changes)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# -- Z --------------------------------------------------------------------------------------------


def test_a_reasoning_is_scored_with_its_closing_tag() -> None:
    z = sampled_reasoning(turn("left</think><answer>L</answer>"), decode)
    assert decode(z) == "left</think>"


def test_tokens_that_straddle_the_tag_come_with_it() -> None:
    # Tokens "lef", "t.</", "think", "><", "answer>": the second and the fourth straddle the tag.
    pieces = ["lef", "t.</", "think", "><", "answer>"]
    record = Turn(
        index=0,
        observation="",
        response="".join(pieces),
        reasoning_chars=(0, 5),
        reasoning_span=(0, 1),
        prompt_tokens=encode("p"),
        response_tokens=np.arange(5, dtype=np.int32),
    )
    z = sampled_reasoning(record, lambda tokens: "".join(pieces[i] for i in tokens))
    assert z.tolist() == [0, 1, 2, 3]


def test_a_cut_reasoning_is_a_flagged_prefix() -> None:
    z = sampled_reasoning(turn("left and", finish=FinishReason.LENGTH), decode)
    assert decode(z) == "left and"


def test_a_reply_that_ends_inside_its_reasoning_is_complete() -> None:
    # Its stop token "$" says so, and is part of what was sampled.
    record = turn("left$")
    assert decode(sampled_reasoning(record, decode)) == "left$"


def test_an_empty_reasoning_is_its_closing_tag() -> None:
    z = sampled_reasoning(turn("</think>a"), decode)
    assert decode(z) == "</think>"


def test_text_without_tokens_or_without_reasoning_is_no_pair() -> None:
    imported = Turn(index=0, observation="", response="x</think>", reasoning_chars=(0, 1))
    assert sampled_reasoning(imported, decode) is None
    no_reasoning = Turn(
        index=0,
        observation="",
        response="a",
        prompt_tokens=encode("p"),
        response_tokens=encode("a"),
    )
    assert sampled_reasoning(no_reasoning, decode) is None
    assert sampled_reasoning(turn("", finish=FinishReason.ABORT), decode) is None


# -- first_turn -----------------------------------------------------------------------------------


def test_first_turns_are_stratified() -> None:
    draw = draw_first_turn(
        batch(12, 6, (1, 3)), config(prompts=5, reasonings=4), rng(), decode=decode
    )
    assert (len(draw.prompts), draw.num_reasonings) == (5, 20)
    assert collections.Counter(draw.column_M.tolist()) == dict.fromkeys(range(5), 4)
    assert len(set(draw.source_M)) == 20
    for z, column in zip(draw.reasonings, draw.column_M, strict=True):
        group = decode(draw.prompts[column])[1:]
        assert decode(z).startswith(f"z{group}.")
    assert draw.problem == ""


def test_equal_prompts_of_two_groups_are_one() -> None:
    episodes = [
        episode(g, s, turn("z</think>", prompt="same" if g < 2 else "other"))
        for g in range(3)
        for s in range(2)
    ]
    draw = draw_first_turn(episodes, config(reasonings=4), rng(), decode=decode)
    assert len(draw.prompts) == 2
    # The merged prompt has four reasonings, the other two: two each.
    assert collections.Counter(draw.column_M.tolist()) == {0: 2, 1: 2}


def test_fewer_reasonings_come_before_fewer_prompts() -> None:
    episodes = batch(4, 5)[:-3]  # the last group has two siblings left
    draw = draw_first_turn(episodes, config(prompts=4, reasonings=5), rng(), decode=decode)
    assert (len(draw.prompts), draw.num_reasonings) == (4, 8)
    # With three prompts wanted the last group is no candidate.
    draw = draw_first_turn(episodes, config(prompts=3, reasonings=5), rng(), decode=decode)
    assert (len(draw.prompts), draw.num_reasonings) == (3, 15)


def test_all_prompts_equal_says_so_and_keeps_the_entropy() -> None:
    episodes = [episode(g, 0, turn("z</think>", prompt="same")) for g in range(4)]
    draw = draw_first_turn(episodes, config(), rng(), decode=decode)
    assert len(draw.prompts) == 1
    assert draw.num_reasonings == 4
    assert draw.problem == (
        "all 4 reasonings have the same prompt: I(X;Z) needs two distinct prompts"
    )


def test_imported_text_says_that_it_has_no_tokens() -> None:
    imported = episode(0, 0, Turn(index=0, observation="", response="x", reasoning_chars=(0, 1)))
    draw = draw_first_turn([imported], config(), rng(), decode=decode)
    assert draw.num_reasonings == 0
    assert "none of 1 turns has token ids and a reasoning" in draw.problem
    assert "no turns" in draw_first_turn([], config(), rng(), decode=decode).problem


def test_draws_depend_on_their_generator_only() -> None:
    first, second, third = (
        draw_first_turn(batch(12, 6), config(prompts=5), rng(seed), decode=decode).source_M
        for seed in (1, 1, 2)
    )
    assert first == second != third


# -- all_turns ------------------------------------------------------------------------------------


def test_one_turn_per_episode() -> None:
    draw = draw_all_turns(batch(8, 8, (1, 2, 3, 6)), rng(), decode=decode)
    episodes = [source[0] for source in draw.source_M]
    assert len(set(episodes)) == len(episodes)
    assert len({x.tobytes() for x in draw.prompts}) == len(draw.prompts)


def test_episode_length_does_not_select() -> None:
    """Turns of long and of short episodes come as often as they stand in the batch.

    60 episodes of 1 turn and 20 of 5: 60 short and 20 long first turns. Drawing among an episode's
    own turns would find a first turn of a long episode five times less often than it stands there.
    """
    episodes = batch(80, 1, (1, 1, 1, 5))
    short = long = 0
    for seed in range(200):
        draw = draw_all_turns(episodes, rng(seed), decode=decode, num_prompts=500)
        for z, (_, k) in zip(draw.reasonings, draw.source_M, strict=True):
            group = int(decode(z)[1:].split(".")[0])
            if k == 0:
                long += group % 4 == 3
                short += group % 4 != 3
    assert short / long == pytest.approx(3, rel=0.15)


def test_no_prompt_holds_a_reasoning_that_is_scored() -> None:
    episodes = []
    for g in range(6):
        for s in range(4):
            prompt, turns = f"task{g}", []
            for k in range(3):
                text = f"thought {g} {s} {k}</think>"
                turns.append(turn(text, prompt=prompt, index=k))
                prompt += text
            episodes.append(episode(g, s, *turns))
    draw = draw_all_turns(episodes, rng(), decode=decode)
    assert len(draw.prompts) > 8
    for z in draw.reasonings:
        assert not any(decode(z) in decode(x) for x in draw.prompts)


# -- through a scorer -----------------------------------------------------------------------------


def test_a_draw_keeps_its_labels_through_scoring_and_estimation() -> None:
    draw = draw_first_turn(batch(8, 8), config(), rng(), decode=decode)
    scores = score_draw(TableScorer(), draw)
    information = estimate(scores)
    assert information.scores.family == "first_turn"
    assert scores.source_M == draw.source_M
    assert information.mutual_information > 0.5
    assert information.retrieval_p_value < 0.01
    assert "info/first_turn/mutual_information" in information.metrics()


def recorded(value: float) -> list[Trajectory]:
    """Episodes whose every sampled token was recorded with the same log-prob."""
    return [
        episode(
            g,
            s,
            replace(
                turn("z</think>", prompt=f"{g}z</think>"),
                logprobs=np.full(9, np.log(value), dtype=np.float32),
            ),
        )
        for g in range(3)
        for s in range(2)
    ]


def test_scores_are_compared_with_those_recorded_at_sampling() -> None:
    draw = draw_first_turn(recorded(0.9), config(), rng(), decode=decode)
    scores = score_draw(TableScorer(), draw)
    assert scores.sampling_gap == pytest.approx(0, abs=1e-6)
    draw = draw_first_turn(recorded(0.5), config(), rng(), decode=decode)
    scores = score_draw(TableScorer(), draw)
    assert scores.sampling_gap == pytest.approx(np.log(0.9 / 0.5))


def test_nothing_drawn_forwards_nothing() -> None:
    scorer = TableScorer()
    draw = draw_first_turn([], config(), rng(), decode=decode)
    scores = score_draw(scorer, draw)
    assert isinstance(scores, CrossScores)
    assert scorer.tally.num_tokens == 0
    assert estimate(scores).problem == "there are no turns to draw from"
