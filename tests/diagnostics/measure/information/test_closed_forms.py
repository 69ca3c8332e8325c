"""Policies whose I(X;Z) and H are known: bias below 2 standard errors, intervals cover 92 to 98 %.

Each policy is repeated 400 times. Legend: **N** prompts, **M** reasonings, **R** repetitions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from scipy.special import log_softmax
from sequence_scores import scores_of_sequences

from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.estimate import InformationEstimate, estimate

REPETITIONS = 400


@dataclass(frozen=True, slots=True)
class Truth:
    """Nats per sequence."""

    information: float
    entropy: float
    """H(Z given X)."""


@dataclass(slots=True)
class Repeated:
    """Estimates of one policy over and over."""

    truth: Truth
    estimates: list[InformationEstimate]

    def values(self, name: str) -> np.ndarray:
        return np.array([getattr(information, name) for information in self.estimates])

    def bias_in_standard_errors(self, name: str, truth: float) -> float:
        values = self.values(name)
        error = values.std(ddof=1) / math.sqrt(len(values))
        return abs(values.mean() - truth) / error

    def coverage(self, name: str, truth: float) -> float:
        return float(np.mean([holds(information, name, truth) for information in self.estimates]))


def holds(information: InformationEstimate, name: str, value: float) -> bool:
    """Whether the interval holds a value, give or take rounding."""
    low, high = information.intervals[name]
    return low - 1e-9 <= value <= high + 1e-9


def repeat(draw: Callable[[np.random.Generator], CrossScores], truth: Truth) -> Repeated:
    rng = np.random.default_rng(9)
    estimates = [estimate(draw(rng), num_permutations=19, seed=seed) for seed in range(REPETITIONS)]
    return Repeated(truth, estimates)


def from_table(log_p_NZ: np.ndarray, per_prompt: int) -> Callable[..., CrossScores]:
    """Draws of a policy with finitely many reasonings, log p(z|x_n) in a table."""
    num_prompts = len(log_p_NZ)
    column_M = np.repeat(np.arange(num_prompts), per_prompt)

    def draw(rng: np.random.Generator) -> CrossScores:
        cumulative = np.exp(log_p_NZ).cumsum(axis=1)[column_M]
        picks = (cumulative < rng.random(len(column_M))[:, None] * cumulative[:, -1:]).sum(axis=1)
        return scores_of_sequences(log_p_NZ[:, picks].T, column_M)

    return draw


def table_truth(log_p_NZ: np.ndarray) -> Truth:
    """I and H of X uniform on the rows, by enumeration."""
    p = np.exp(log_p_NZ)
    mixture = p.mean(axis=0)
    entropy = -(p * np.where(p > 0, log_p_NZ, 0.0)).sum(axis=1).mean()
    total = -(mixture * np.log(mixture, where=mixture > 0, out=np.zeros_like(mixture))).sum()
    return Truth(total - entropy, entropy)


def symmetric_channel(num_prompts: int, q: float) -> np.ndarray:
    """Z = X with probability q, else uniform over all N."""
    table = np.full((num_prompts, num_prompts), (1 - q) / num_prompts) + q * np.eye(num_prompts)
    return np.log(table)


# -- no variance: exact -----------------------------------------------------------------------


def test_reasoning_that_ignores_the_prompt_carries_no_information() -> None:
    draw = from_table(np.full((8, 5), -math.log(5)), 8)
    for seed in range(20):
        information = estimate(draw(np.random.default_rng(seed)), num_permutations=19, seed=seed)
        assert information.mutual_information == pytest.approx(0, abs=1e-12)
        assert information.conditional_entropy == pytest.approx(math.log(5))
        assert holds(information, "mutual_information", 0.0)
        assert information.retrieval_accuracy == pytest.approx(1 / 8)
        assert information.retrieval_p_value == 1.0
        assert math.isnan(information.identification_length)


def test_reasoning_that_spells_the_prompt_carries_ln_n() -> None:
    with np.errstate(divide="ignore"):
        table = np.log(np.eye(8))
    information = estimate(from_table(table, 4)(np.random.default_rng(0)))
    assert information.mutual_information == pytest.approx(math.log(8))
    assert information.dependence == pytest.approx(1)
    assert information.conditional_entropy == 0
    assert information.marginal_entropy == pytest.approx(math.log(8))
    assert information.retrieval_accuracy == 1
    assert information.retrieval_p_value == pytest.approx(1 / 1001)
    assert information.identification_length == 1


# -- known values, with variance --------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("q", [0.2, 0.5, 0.8])
def test_symmetric_channel(q: float) -> None:
    # I = ln N + a ln a + (1-a) ln((1-a)/(N-1)) with a = q + (1-q)/N.
    n = 16
    a = q + (1 - q) / n
    information = math.log(n) + a * math.log(a) + (1 - a) * math.log((1 - a) / (n - 1))
    table = symmetric_channel(n, q)
    assert table_truth(table).information == pytest.approx(information)
    runs = repeat(from_table(table, 8), Truth(information, math.log(n) - information))
    assert runs.bias_in_standard_errors("mutual_information", information) < 2
    assert runs.bias_in_standard_errors("conditional_entropy", runs.truth.entropy) < 2
    assert 0.92 <= runs.coverage("mutual_information", information) <= 0.98
    assert 0.92 <= runs.coverage("conditional_entropy", runs.truth.entropy) <= 0.98


def two_part(rng: np.random.Generator) -> CrossScores:
    """Five template tokens drawn from 7 words, then 3 copied tokens.

    The 8 prompts are the 3-bit numbers; each copied token is the prompt's bit with probability 0.9.
    """
    bits = (np.arange(8)[:, None] >> np.arange(3)) & 1
    column_M = np.repeat(np.arange(8), 8)
    copied = bits[column_M] ^ (rng.random((64, 3)) < 0.1)
    agree = copied[:, None, :] == bits[None]
    copied_logp = np.where(agree, math.log(0.9), math.log(0.1))
    template_logp = np.full((64, 8, 5), -math.log(7))
    return CrossScores(
        logprobs_MNR=np.concatenate([template_logp, copied_logp], axis=2),
        lengths_M=np.full(64, 8),
        column_M=column_M,
    )


@pytest.mark.long
def test_template_and_copied_tokens() -> None:
    h = -(0.9 * math.log(0.9) + 0.1 * math.log(0.1))
    truth = Truth(3 * (math.log(2) - h), 5 * math.log(7) + 3 * h)
    runs = repeat(two_part, truth)
    assert runs.bias_in_standard_errors("mutual_information", truth.information) < 2
    assert runs.bias_in_standard_errors("conditional_entropy", truth.entropy) < 2
    assert 0.92 <= runs.coverage("mutual_information", truth.information) <= 0.98
    per_token = truth.entropy / 8
    assert 0.92 <= runs.coverage("conditional_entropy_per_token", per_token) <= 0.98
    # The curve is flat over the template and rises by ln 2 - h with each copied bit.
    information = runs.estimates[0]
    assert information.curve_k.tolist() == [1, 2, 4, 8]
    np.testing.assert_allclose(information.curve[:3], 0, atol=1e-12)
    mean_information = np.mean(
        [np.mean(information.token_information, axis=0) for information in runs.estimates], axis=0
    )
    np.testing.assert_allclose(mean_information[:5], 0, atol=1e-12)
    np.testing.assert_allclose(mean_information[5:], math.log(2) - h, atol=0.01)


TRANSITIONS = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4], [0.1, 0.6, 0.3]])
"""Tokens 0, 1 and the closing tag 2; a reasoning ends with the first tag."""


def markov(rng: np.random.Generator, length: int = 12) -> CrossScores:
    """Reasonings of `length` tokens from a first-order chain that ignores its 8 prompts."""
    tokens = np.zeros((64, length), dtype=int)
    tokens[:, 0] = rng.integers(0, 3, 64)
    for t in range(1, length):
        cumulative = TRANSITIONS[tokens[:, t - 1]].cumsum(axis=1)
        tokens[:, t] = (cumulative < rng.random((64, 1))).sum(axis=1)
    steps = np.full((64, length), -math.log(3))
    steps[:, 1:] = np.log(TRANSITIONS[tokens[:, :-1], tokens[:, 1:]])
    return CrossScores(
        logprobs_MNR=np.repeat(steps[:, None], 8, axis=1),
        lengths_M=np.full(64, length),
        column_M=np.repeat(np.arange(8), 8),
    )


def markov_entropy(length: int) -> float:
    """H of the first token, then of each step under the distribution of the token before."""
    step = -(TRANSITIONS * np.log(TRANSITIONS)).sum(axis=1)
    where, total = np.full(3, 1 / 3), math.log(3)
    for _ in range(length - 1):
        total += where @ step
        where = where @ TRANSITIONS
    return float(total)


@pytest.mark.long
def test_markov_reasonings_have_their_chain_s_entropy() -> None:
    truth = Truth(0.0, markov_entropy(12))
    runs = repeat(markov, truth)
    assert runs.bias_in_standard_errors("conditional_entropy", truth.entropy) < 2
    assert 0.92 <= runs.coverage("conditional_entropy", truth.entropy) <= 0.98
    np.testing.assert_allclose(runs.values("mutual_information"), 0, atol=1e-12)


# -- an exactly enumerable softmax policy -------------------------------------------------------


class TinyLanguageModel:
    """p(z|x) over all reasonings of up to 3 tokens of 3 words, or the closing tag.

    Logits are a bigram table plus the prompt's own preference, so that every z is enumerable.
    """

    def __init__(self, num_prompts: int, strength: float, rng: np.random.Generator) -> None:
        bigram = rng.normal(size=(4, 4))
        own = (
            strength
            * rng.normal(size=(num_prompts, 1, 4))
            * rng.uniform(0.2, 1.8, (num_prompts, 1, 1))
        )
        self.step = log_softmax(bigram + own, axis=-1)  # (N, previous, next); 3 is the tag
        strings = [()]
        self.reasonings: list[tuple[int, ...]] = []
        for _ in range(3):
            self.reasonings += [(*w, 3) for w in strings]
            strings = [(*w, token) for w in strings for token in range(3)]
        self.reasonings += strings  # cut off at three tokens
        self.steps = np.zeros((num_prompts, len(self.reasonings), 3))
        for index, z in enumerate(self.reasonings):
            for t, token in enumerate(z):
                self.steps[:, index, t] = self.step[:, z[t - 1] if t else 3, token]
        self.table = self.steps.sum(axis=2)
        self.lengths = np.array([len(z) for z in self.reasonings])

    def draw(self, rng: np.random.Generator, prompts: np.ndarray, per_prompt: int) -> CrossScores:
        column_M = np.repeat(np.arange(len(prompts)), per_prompt)
        cumulative = np.exp(self.table[prompts]).cumsum(axis=1)[column_M]
        picks = (cumulative < rng.random((len(column_M), 1))).sum(axis=1)
        return CrossScores(
            logprobs_MNR=self.steps[prompts][:, picks].transpose(1, 0, 2),
            lengths_M=self.lengths[picks],
            column_M=column_M,
        )


def test_the_enumeration_is_complete() -> None:
    model = TinyLanguageModel(5, 1.0, np.random.default_rng(0))
    np.testing.assert_allclose(np.exp(model.table).sum(axis=1), 1)


@pytest.mark.long
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_softmax_policy_this_batch(strength: float) -> None:
    model = TinyLanguageModel(8, strength, np.random.default_rng(1))
    truth = table_truth(model.table)
    runs = repeat(lambda rng: model.draw(rng, np.arange(8), 8), truth)
    assert runs.bias_in_standard_errors("mutual_information", truth.information) < 2
    assert runs.bias_in_standard_errors("conditional_entropy", truth.entropy) < 2
    assert 0.92 <= runs.coverage("mutual_information", truth.information) <= 0.98
    assert 0.92 <= runs.coverage("conditional_entropy", truth.entropy) <= 0.98
    # H per token is H over the mean length.
    tokens = (np.exp(model.table).mean(axis=0) * model.lengths).sum()
    rate = truth.entropy / tokens
    assert 0.92 <= runs.coverage("conditional_entropy_per_token", rate) <= 0.98


@pytest.mark.long
@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_softmax_policy_the_prompt_distribution(strength: float) -> None:
    """8 prompts of 2,000 at a time: the interval covers the value expected over such batches."""
    model = TinyLanguageModel(2000, strength, np.random.default_rng(2))
    subsets = [np.random.default_rng(s).choice(2000, 8, replace=False) for s in range(4000)]
    truths = [table_truth(model.table[subset]) for subset in subsets]
    information = float(np.mean([truth.information for truth in truths]))
    entropy = float(np.mean([truth.entropy for truth in truths]))

    def draw(rng: np.random.Generator) -> CrossScores:
        return model.draw(rng, rng.choice(2000, 8, replace=False), 8)

    runs = repeat(draw, Truth(information, entropy))
    assert runs.bias_in_standard_errors("mutual_information", information) < 2
    # Of a few prompts it is a lower bound on the whole population's.
    everyone = table_truth(model.table).information
    assert information < everyone


@pytest.mark.long
def test_one_reasoning_per_prompt() -> None:
    """Siblings cannot tell the spread: the batch interval is wider, never narrower."""
    model = TinyLanguageModel(2000, 1.0, np.random.default_rng(3))
    inside = []
    for seed in range(REPETITIONS):
        rng = np.random.default_rng(seed)
        prompts = rng.choice(2000, 32, replace=False)
        information = estimate(model.draw(rng, prompts, 1), num_permutations=19)
        truth = table_truth(model.table[prompts]).information
        inside.append(holds(information, "mutual_information", truth))
    assert np.mean(inside) >= 0.92
