"""Swapped reasoning: worth ln 9 where answers follow it, nothing where it is decoration."""

from __future__ import annotations

import math

import numpy as np
import pytest
from letter_tokens import TableScorer, decode, episode, turn

from echoscope.diagnostics.measure.information.answer_swap import (
    plan_swaps,
    swap_answers,
)


class FollowingScorer(TableScorer):
    """p = 0.9 for a character that the reasoning named, else 0.1, whatever the prompt."""

    def rows(self, prompt, continuations):
        out = []
        for row in continuations:
            end = decode(row).index("</think>")
            named = set(row[:end].tolist())
            out.append(np.log([0.9 if token in named else 0.1 for token in row]))
        return out


class SilentScorer(TableScorer):
    def rows(self, prompt, continuations):
        return [np.full(len(row), -math.inf) for row in continuations]


def episodes(answers: str = "UDLR", siblings: int = 2):
    """Under prompt g the reasoning names the g-th answer, and gives it."""
    return [
        episode(g, s, turn(f"so {answer}</think>{answer}", prompt=f"p{g}{answers}"))
        for g, answer in enumerate(answers)
        for s in range(siblings)
    ]


def swap(scorer, trajectories, **changes):
    plan = plan_swaps(trajectories, np.random.default_rng(0), decode=decode, **changes)
    return swap_answers(scorer, plan)


class Counting(FollowingScorer):
    """Counts what it is asked for."""

    def rows(self, prompt, continuations):
        self.tally.num_tokens += len(prompt) + sum(map(len, continuations))
        return super().rows(prompt, continuations)


def test_a_plan_knows_its_tokens_before_they_are_scored():
    scorer = Counting()
    plan = plan_swaps(episodes(), np.random.default_rng(0), decode=decode, num_turns=3)
    swap_answers(scorer, plan)
    assert plan.num_tokens == scorer.tally.num_tokens > 0


def test_an_answer_that_follows_its_reasoning_loses_ln_9_by_the_swap():
    found = swap(FollowingScorer(), episodes())
    assert found.gap == pytest.approx(math.log(9), rel=1e-5)
    assert found.standard_error == pytest.approx(0, abs=1e-6)
    assert found.own_best_frac == 1
    assert (found.num_turns, found.num_swaps) == (8, 32)


def test_an_answer_that_only_looks_at_the_prompt_loses_nothing():
    found = swap(TableScorer(), episodes())
    assert found.gap == pytest.approx(0, abs=1e-6)
    assert found.own_best_frac == 0.5


def test_sizes_are_bounded():
    found = swap(FollowingScorer(), episodes(), num_turns=3, num_swaps=2)
    assert (found.num_turns, found.num_swaps) == (3, 6)


def test_a_prompt_is_never_swapped_with_itself():
    """Six siblings of one prompt, one of another: all swaps change the reasoning."""
    some = [*episodes("U", 6), episode(9, 0, turn("so D</think>D", prompt="q"))]
    assert swap(FollowingScorer(), some).own_best_frac == 1


@pytest.mark.parametrize(
    ("trajectories", "problem"),
    [
        ([], "no prompt has"),
        (episodes("U"), "one prompt has"),
        ([episode(g, 0, turn("never closed")) for g in range(3)], "no prompt has"),
        ([episode(g, 0, turn("no answer</think>")) for g in range(3)], "no prompt has"),
        ([episode(g, 0) for g in range(3)], "no prompt has"),
    ],
)
def test_what_cannot_be_swapped_is_said(trajectories, problem):
    found = swap(FollowingScorer(), trajectories)
    assert found.problem.startswith(problem)
    assert math.isnan(found.metrics()["info/swap/answer_gap"])


def test_log_probs_that_are_not_finite_are_left_out():
    assert swap(SilentScorer(), episodes()).problem == "no answer has a finite log-prob"
