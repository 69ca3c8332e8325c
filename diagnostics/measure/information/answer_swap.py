"""Does the answer follow from the reasoning? Its likelihood after another prompt's reasoning.

For a first turn with prompt x, reasoning z and answer a, the very tokens of a are scored twice:
after x and z, and after x and reasonings z' that other prompts gave rise to. If reasoning is
decoration, the answer is as likely either way; if the answer follows from it, swapping costs nats.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from echoscope.store.records import IntArray, Trajectory

from .pairs import Decode, sampled_reasoning

if TYPE_CHECKING:
    from .cross_scores import Scorer

_TIE = 1e-4
"""Nats: what rounding may make of equal log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSwap:
    """How much less likely answers are after another prompt's reasoning."""

    gap: float
    """Nats per answer: mean over turns of log p(a | x, z) minus the mean of log p(a | x, z')."""
    standard_error: float
    """Of the gap, over turns."""
    own_best_frac: float
    """Share of swaps that make the answer less likely, ties half: 0.5 for mere decoration."""
    num_turns: int
    num_swaps: int
    problem: str = ""
    """Why there are no numbers; empty if there are."""

    @classmethod
    def missing(cls, problem: str) -> AnswerSwap:
        """No numbers, and why."""
        return cls(
            gap=math.nan,
            standard_error=math.nan,
            own_best_frac=math.nan,
            num_turns=0,
            num_swaps=0,
            problem=problem,
        )

    def metrics(self) -> dict[str, float]:
        """`info/swap/...`; NaN where there is a problem."""
        return {
            "info/swap/answer_gap": self.gap,
            "info/swap/answer_gap_se": self.standard_error,
            "info/swap/own_best_frac": self.own_best_frac,
            "info/swap/num_turns": float(self.num_turns),
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Answer:
    prompt_key: str
    prompt: IntArray
    reasoning: IntArray
    answer: IntArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SwapPlan:
    """Which answers are scored after which reasonings."""

    asked: tuple[_Answer, ...] = ()
    sources: tuple[tuple[_Answer, ...], ...] = ()
    """Of each answer: its own, then those whose reasonings stand in for it."""
    problem: str = ""
    """Why there is nothing to score; empty if there is."""

    @property
    def num_tokens(self) -> int:
        """Tokens that scoring it sends through a model, at most."""
        return sum(
            len(one.prompt) + sum(len(source.reasoning) + len(one.answer) for source in some)
            for one, some in zip(self.asked, self.sources, strict=True)
        )


def plan_swaps(
    trajectories: Sequence[Trajectory],
    rng: np.random.Generator,
    *,
    decode: Decode,
    num_turns: int = 16,
    num_swaps: int = 4,
) -> SwapPlan:
    """Draw `num_turns` first turns, and `num_swaps` reasonings of other prompts for each.

    Turns without token ids, a closed reasoning or an answer after it are left out.
    """
    known = [one for t in trajectories if (one := _answer(t, decode)) is not None]
    if len({one.prompt_key for one in known}) < 2:
        has = "one prompt has" if known else "no prompt has"
        return SwapPlan(problem=f"{has} a closed reasoning with an answer after it; two are needed")
    chosen = sorted(rng.permutation(len(known))[:num_turns].tolist())
    asked, sources = [known[k] for k in chosen], []
    for one in asked:
        others = [other for other in known if other.prompt_key != one.prompt_key]
        sources.append((one, *(others[k] for k in rng.permutation(len(others))[:num_swaps])))
    return SwapPlan(asked=tuple(asked), sources=tuple(sources))


def swap_answers(scorer: Scorer, plan: SwapPlan) -> AnswerSwap:
    """Score answers after their own reasoning and after those of other prompts.

    Each turn is forwarded once with its prompt, then with its own and the other reasonings.
    Log-probs that are not finite are left out.

    Raises:
        ScoringError: the model cannot take a row that long.
    """
    if plan.problem:
        return AnswerSwap.missing(plan.problem)
    gaps, wins = [], []
    for own, *swapped in _answer_logprobs(scorer, plan.asked, plan.sources):
        finite = [value for value in swapped if math.isfinite(value)]
        if math.isfinite(own) and finite:
            gaps.append(own - float(np.mean(finite)))
            wins += [0.5 if abs(own - v) < _TIE else float(own > v) for v in finite]
    if not gaps:
        return AnswerSwap.missing("no answer has a finite log-prob")
    spread = float(np.std(gaps, ddof=1)) if len(gaps) > 1 else math.nan
    return AnswerSwap(
        gap=float(np.mean(gaps)),
        standard_error=spread / math.sqrt(len(gaps)),
        own_best_frac=float(np.mean(wins)),
        num_turns=len(gaps),
        num_swaps=len(wins),
    )


def _answer(trajectory: Trajectory, decode: Decode) -> _Answer | None:
    """The parts of a first turn; None if one of them is missing."""
    if not trajectory.turns:
        return None
    turn = trajectory.turns[0]
    reasoning = sampled_reasoning(turn, decode)
    if reasoning is None or reasoning.is_truncated or turn.prompt_tokens is None:
        return None
    assert turn.response_tokens is not None
    answer = turn.response_tokens[len(reasoning.tokens) :]
    if not len(answer) or not len(turn.prompt_tokens):
        return None
    return _Answer(
        prompt_key=trajectory.prompt_key,
        prompt=turn.prompt_tokens,
        reasoning=reasoning.tokens,
        answer=answer,
    )


def _answer_logprobs(
    scorer: Scorer, asked: Sequence[_Answer], sources: Sequence[Sequence[_Answer]]
) -> list[list[float]]:
    """log p(answer | prompt, reasoning) for the reasoning of each of its sources."""
    rows = [
        [np.concatenate([source.reasoning, one.answer]) for source in some]
        for one, some in zip(asked, sources, strict=True)
    ]
    scored = scorer.score([one.prompt for one in asked], rows)
    return [
        [float(np.sum(row[-len(one.answer) :], dtype=np.float64)) for row in found]
        for one, found in zip(asked, scored, strict=True)
    ]
