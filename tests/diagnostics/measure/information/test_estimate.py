"""Information estimates: identities, hand-worked values, and saying so when there is nothing."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sequence_scores import scores_of_sequences

from echoscope.diagnostics.measure.information.cross_scores import CrossScores
from echoscope.diagnostics.measure.information.estimate import estimate


def random_scores(seed: int, prompts: int, per_prompt: int, longest: int, **more) -> CrossScores:
    """Ragged reasonings with arbitrary log-probs; the own column is a little better."""
    rng = np.random.default_rng(seed)
    column_M = np.repeat(np.arange(prompts), per_prompt)
    count = len(column_M)
    logprobs = -rng.exponential(1.0, (count, prompts, longest))
    logprobs[np.arange(count), column_M] *= rng.uniform(0.1, 1.0)
    return CrossScores(
        logprobs_MNR=logprobs,
        lengths_M=rng.integers(1, longest + 1, count),
        column_M=column_M,
        **more,
    )


many_scores = st.builds(
    random_scores,
    st.integers(0, 10_000),
    st.integers(2, 6),
    st.integers(1, 4),
    st.integers(1, 9),
)


@settings(max_examples=40, deadline=None)
@given(many_scores)
def test_identities_hold_exactly(scores: CrossScores) -> None:
    information = estimate(scores, num_permutations=19)
    total = information.conditional_entropy + information.mutual_information
    assert information.marginal_entropy == pytest.approx(total, abs=1e-12)
    assert information.mutual_information <= information.ceiling + 1e-12
    assert information.curve[-1] == pytest.approx(information.mutual_information, abs=1e-9)
    # Tokens sum to their sequence, sequences to the estimate.
    sequences = np.array([tokens.sum() for tokens in information.token_information])
    per_prompt = [sequences[scores.column_M == n].mean() for n in range(scores.num_prompts)]
    assert np.mean(per_prompt) == pytest.approx(information.mutual_information, abs=1e-9)
    assert [len(t) for t in information.token_information] == scores.lengths_M.tolist()
    low, high = information.intervals["mutual_information"]
    assert math.isnan(low) or low <= high


def test_what_stands_behind_a_reasoning_s_end_does_not_count() -> None:
    scores = random_scores(0, 3, 2, 6)
    inside = np.broadcast_to(
        (np.arange(6) < scores.lengths_M[:, None])[:, None], scores.logprobs_MNR.shape
    )
    padded = np.where(inside, scores.logprobs_MNR, 0.0)
    noisy = np.where(inside, scores.logprobs_MNR, np.nan)
    expected = estimate(CrossScores(**fields(scores, logprobs_MNR=padded)))
    information = estimate(CrossScores(**fields(scores, logprobs_MNR=noisy)))
    assert information.mutual_information == expected.mutual_information
    assert information.curve.tolist() == expected.curve.tolist()


def fields(scores: CrossScores, **changes) -> dict:
    arrays = {name: getattr(scores, name) for name in ("logprobs_MNR", "lengths_M", "column_M")}
    return arrays | changes


def test_prompts_weigh_the_same_however_many_reasonings_they_have() -> None:
    # Prompt 0: p = 0.9 under its own, 0.1 under the other, three times; prompt 1: 0.5, 0.5 once.
    table = np.log([[0.9, 0.1]] * 3 + [[0.5, 0.5]])
    information = estimate(scores_of_sequences(table, [0, 0, 0, 1]))
    assert information.mutual_information == pytest.approx(0.5 * math.log(0.9 / 0.5))
    assert information.conditional_entropy == pytest.approx(-0.5 * (math.log(0.9) + math.log(0.5)))


def test_entropy_per_token_is_a_ratio_of_sums() -> None:
    logprobs = np.zeros((2, 2, 4))
    logprobs[0, :, :1] = -1.0  # one token of 1 nat
    logprobs[1, :, :4] = -2.0  # four tokens of 2 nats
    scores = CrossScores(
        logprobs_MNR=logprobs, lengths_M=np.array([1, 4]), column_M=np.array([0, 1])
    )
    assert estimate(scores).conditional_entropy_per_token == pytest.approx(9 / 5)


def copied_at(position: int, length: int = 6, prompts: int = 8) -> CrossScores:
    """Reasonings of `length` tokens; the one at `place` names the prompt, the rest are template."""
    logprobs = np.full((prompts, prompts, length), -1.0)
    logprobs[:, :, position] = np.where(np.eye(prompts), 0.0, -30.0)
    return CrossScores(
        logprobs_MNR=logprobs, lengths_M=np.full(prompts, length), column_M=np.arange(prompts)
    )


def test_the_curve_shows_where_the_prompt_is_named() -> None:
    information = estimate(copied_at(3))
    assert information.curve_k.tolist() == [1, 2, 4, 6]
    np.testing.assert_allclose(information.curve, [0, 0, math.log(8), math.log(8)], atol=1e-9)
    assert information.identification_length == 4
    tokens = information.token_information[0]
    np.testing.assert_allclose(tokens, [0, 0, 0, math.log(8), 0, 0], atol=1e-9)


def test_with_two_prompts_chance_does_not_identify() -> None:
    same = scores_of_sequences(np.full((4, 2), -3.0), [0, 0, 1, 1])
    assert math.isnan(estimate(same).identification_length)


def test_a_finished_reasoning_stays_as_it_is() -> None:
    # Row 0 ends after its first token, which names the prompt; row 1 names it with its third.
    logprobs = np.zeros((2, 2, 3))
    logprobs[0, 1, 0] = logprobs[1, 0, 2] = -np.inf
    scores = CrossScores(
        logprobs_MNR=logprobs, lengths_M=np.array([1, 3]), column_M=np.array([0, 1])
    )
    information = estimate(scores)
    np.testing.assert_allclose(information.curve, np.log(2) * np.array([0.5, 0.5, 1.0]))


def test_retrieval_ties_are_broken_at_random() -> None:
    # Row 0 ties with prompt 1; row 1 is its own; rows 2 and 3 prefer prompt 0.
    table = np.array([[-1, -1, -9, -9], [-9, -1, -9, -9], [-1, -9, -2, -9], [-1, -9, -9, -2]])
    information = estimate(scores_of_sequences(table, [0, 1, 2, 3]))
    assert information.retrieval_accuracy == (0.5 + 1) / 4
    assert information.metrics()["info/custom/retrieval_chance@1"] == 0.25
    assert information.retrieval_p_value > 0.3


def test_permutation_p_values_are_valid() -> None:
    rng = np.random.default_rng(0)
    p_values = []
    for seed in range(100):
        scores = scores_of_sequences(-rng.exponential(size=(32, 8)), np.repeat(range(8), 4))
        information = estimate(scores, num_permutations=99, seed=seed)
        p_values.append(information.retrieval_p_value)
    assert np.mean(np.array(p_values) <= 0.1) <= 0.17


def test_the_same_scores_give_the_same_estimate() -> None:
    scores = random_scores(5, 6, 3, 4)
    assert estimate(scores, seed=3).metrics() == estimate(scores, seed=3).metrics()


# -- not available --------------------------------------------------------------------------------


def assert_not_available(scores: CrossScores, phrase: str, *, has_entropy: bool = False) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        information = estimate(scores)
        metrics = information.metrics()
    assert phrase in information.problem
    assert math.isnan(information.mutual_information)
    assert math.isnan(information.dependence)
    assert math.isnan(information.marginal_entropy)
    assert math.isnan(information.retrieval_accuracy)
    assert math.isnan(information.conditional_entropy) != has_entropy
    assert metrics.keys() == estimate(random_scores(0, 2, 2, 2)).metrics().keys()
    sizes = ("num_prompts", "num_reasonings")
    measured = {key.split("/")[-1] for key, value in metrics.items() if not math.isnan(value)}
    assert measured >= set(sizes)
    if not has_entropy:
        assert measured == set(sizes)


def test_one_prompt_has_an_entropy_and_no_information() -> None:
    scores = random_scores(0, 1, 6, 4)
    assert_not_available(scores, "one distinct prompt", has_entropy=True)
    information = estimate(scores)
    low, high = information.intervals["conditional_entropy"]
    assert low < information.conditional_entropy < high


def test_one_reasoning_in_all() -> None:
    assert_not_available(random_scores(0, 1, 1, 4), "one distinct prompt", has_entropy=True)


def test_no_reasonings() -> None:
    assert_not_available(CrossScores(problem="nothing was sampled"), "nothing was sampled")
    none = scores_of_sequences(np.zeros((0, 3)), [])
    assert_not_available(none, "no reasonings to score")


def test_nan_log_probs() -> None:
    table = np.log([[0.9, 0.1], [0.1, 0.9]])
    table[0, 1] = np.nan
    scores = scores_of_sequences(table, [0, 1])
    assert_not_available(scores, "1 of 2 reasonings have NaN log-probs")


def test_empty_reasonings() -> None:
    scores = CrossScores(
        logprobs_MNR=np.zeros((4, 2, 0)),
        lengths_M=np.zeros(4, dtype=int),
        column_M=np.array([0, 0, 1, 1]),
    )
    assert_not_available(scores, "all 4 reasonings are empty")


def test_an_impossible_own_prompt() -> None:
    scores = scores_of_sequences([[-np.inf, 0.0], [-1.0, -1.0]], [0, 1])
    assert_not_available(scores, "reasoning 0 has probability 0")
