"""From logits to tokens: the distribution, and the randomness of each row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.sampling import (
    BELOW_ONE,
    MAX_SUPPORT,
    sample_tokens,
    sampling_logprobs,
)


def uniforms(number: int = 1) -> torch.Tensor:
    """One of each row's own stream."""
    drawn = [np.random.default_rng(seed).random() for seed in range(number)]
    return torch.tensor(drawn, dtype=torch.float64)


PROBS = torch.tensor([[0.1, 0.4, 0.2, 0.3]])


def probs_of(**settings: object) -> list[float]:
    params = SamplingParams(max_new_tokens=1, **settings)
    return sampling_logprobs(PROBS.log(), params).exp()[0].tolist()


def test_temperature_raises_probabilities_to_its_inverse() -> None:
    """p^2 = .01, .16, .04, .09, sum .30."""
    assert probs_of(temperature=0.5) == pytest.approx([1 / 30, 16 / 30, 4 / 30, 9 / 30], rel=1e-5)


def test_greedy_reports_temperature_one_untruncated() -> None:
    assert probs_of(temperature=0, top_k=1) == pytest.approx(PROBS[0].tolist(), rel=1e-5)


def test_top_k() -> None:
    assert probs_of(top_k=2) == pytest.approx([0, 4 / 7, 0, 3 / 7], rel=1e-5)
    assert probs_of(top_k=9) == pytest.approx(PROBS[0].tolist(), rel=1e-5)


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.35, [0, 1, 0, 0]),  # the likeliest alone reaches it
        (0.55, [0, 4 / 7, 0, 3 / 7]),  # .4 does not, .4 + .3 does
        (0.75, [0, 4 / 9, 2 / 9, 3 / 9]),
        (1.0, [0.1, 0.4, 0.2, 0.3]),
    ],
)
def test_top_p_keeps_the_fewest_that_reach_it(top_p: float, kept: list[float]) -> None:
    assert probs_of(top_p=top_p) == pytest.approx(kept, rel=1e-5)


def test_top_p_is_taken_of_what_top_k_left() -> None:
    """Of .4/.7 = .571 and .3/.7 the first alone reaches .57 (of all four it would not)."""
    assert probs_of(top_k=2, top_p=0.57) == pytest.approx([0, 1, 0, 0], rel=1e-5)


@pytest.mark.parametrize(
    ("min_p", "kept"),
    [
        (0.8, [0, 1, 0, 0]),  # 0.8 x 0.4 = 0.32
        (0.7, [0, 4 / 7, 0, 3 / 7]),
        (0.26, [0, 4 / 9, 2 / 9, 3 / 9]),
        (0.0, [0.1, 0.4, 0.2, 0.3]),
    ],
)
def test_min_p_keeps_what_is_a_share_as_likely_as_the_likeliest(
    min_p: float, kept: list[float]
) -> None:
    assert probs_of(min_p=min_p) == pytest.approx(kept, rel=1e-5)


def test_the_support_is_what_truncation_left_in() -> None:
    records = SamplingParams(max_new_tokens=1, top_k=2, records_support=True)
    support = sample_tokens(PROBS.log(), records, uniforms()).support
    assert support is not None
    assert support.tolist() == [[False, True, False, True]]
    whole = SamplingParams(max_new_tokens=1, top_k=4, records_support=True)  # of 4 tokens
    assert sample_tokens(PROBS.log(), whole, uniforms()).support is None


def test_without_top_k_the_support_is_bounded() -> None:
    """A flat distribution over a large vocabulary would leave in nearly all of it."""
    logits = torch.linspace(0, 1e-3, 3 * MAX_SUPPORT)[None]
    params = SamplingParams(max_new_tokens=1, top_p=0.99, records_support=True)
    support = sample_tokens(logits, params, uniforms()).support
    assert support is not None
    assert 0.9 * MAX_SUPPORT < int(support.sum()) <= MAX_SUPPORT


def test_entropy_is_that_of_the_truncated_distribution() -> None:
    params = SamplingParams(max_new_tokens=1, top_k=2)
    _, _, entropies, _ = sample_tokens(PROBS.log(), params, uniforms())
    assert entropies.item() == pytest.approx(-(4 / 7 * np.log(4 / 7) + 3 / 7 * np.log(3 / 7)))


def test_sampled_frequencies_are_the_probabilities() -> None:
    """20,000 rows: a frequency lies within 4 standard errors, sqrt(p (1 - p) / n)."""
    number = 20_000
    params = SamplingParams(max_new_tokens=1)
    tokens, logprobs, _, _ = sample_tokens(PROBS.log().expand(number, -1), params, uniforms(number))
    frequencies = torch.bincount(tokens, minlength=4) / number
    errors = (PROBS[0] * (1 - PROBS[0]) / number).sqrt()
    assert bool(((frequencies - PROBS[0]).abs() < 4 * errors).all())
    torch.testing.assert_close(logprobs, PROBS[0].log()[tokens])


def test_excluded_tokens_are_never_sampled() -> None:
    params = SamplingParams(max_new_tokens=1, top_k=2)
    tokens, logprobs, _, _ = sample_tokens(PROBS.log().expand(5000, -1), params, uniforms(5000))
    assert set(tokens.tolist()) == {1, 3}
    assert bool(torch.isfinite(logprobs).all())


def test_the_largest_uniform_still_picks_a_possible_token() -> None:
    """0.999... of a distribution whose tail has probability 0."""
    largest = torch.tensor([BELOW_ONE], dtype=torch.float64)
    logits = torch.tensor([[0.0, 0.0, -200.0, -200.0]])
    tokens, _, _, _ = sample_tokens(logits, SamplingParams(max_new_tokens=1), largest)
    assert tokens.item() == 1


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")])
def test_logits_that_are_no_numbers_show_in_the_entropy(poison: float) -> None:
    logits = PROBS.log().repeat(2, 1)
    logits[1, 2] = poison
    tokens, _, entropies, _ = sample_tokens(logits, SamplingParams(max_new_tokens=1), uniforms(2))
    assert torch.isfinite(entropies).tolist() == [True, False]
    assert 0 <= tokens[1] < 4
