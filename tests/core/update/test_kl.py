"""KL estimates and penalties against a softmax policy whose every outcome can be enumerated."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from echoscope.core.update.kl import kl_penalty, kl_value, log_ratio, mismatch_kl

LOGITS = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([-0.5, 0.4, 0.2, 1.0], dtype=torch.float64).log_softmax(0)
BEHAVIOUR = torch.tensor([0.9, -0.3, 0.1, 0.4], dtype=torch.float64).log_softmax(0)


def gradient(loss_of_logits) -> Tensor:
    """d loss / d logits at LOGITS."""
    logits = LOGITS.clone().requires_grad_()
    (out,) = torch.autograd.grad(loss_of_logits(logits.log_softmax(0)), logits)
    return out


def expected(values: Tensor, sampled_from: Tensor) -> Tensor:
    """E[values(x)], x drawn from fixed log-probs: what an average over samples tends to."""
    return (sampled_from.detach().exp() * values).sum()


def true_kl(logprobs: Tensor) -> Tensor:
    return (logprobs.exp() * (logprobs - REFERENCE)).sum()


def analytic() -> Tensor:
    """grad KL(pi || ref) by the formula pi_k (d_k - KL)."""
    logprobs = LOGITS.log_softmax(0)
    return logprobs.exp() * (logprobs - REFERENCE - true_kl(logprobs))


def test_the_analytic_gradient_is_that_of_the_kl():
    torch.testing.assert_close(gradient(true_kl), analytic())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_on_policy_the_expected_gradient_is_that_of_the_kl(estimator):
    def loss(logp):
        penalty = kl_penalty(logp, REFERENCE, estimator, behaviour_logprobs=logp)
        return expected(penalty, logp)

    out = gradient(loss)
    torch.testing.assert_close(out, analytic())


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_off_policy_the_importance_weight_restores_it(estimator):
    def loss(logp):
        penalty = kl_penalty(logp, REFERENCE, estimator, behaviour_logprobs=BEHAVIOUR)
        return expected(penalty, BEHAVIOUR)

    torch.testing.assert_close(gradient(loss), analytic())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_the_expected_value_is_the_kl_on_and_off_policy(estimator):
    logp = LOGITS.log_softmax(0)
    on = expected(kl_penalty(logp, REFERENCE, estimator, behaviour_logprobs=logp), logp)
    off = kl_penalty(logp, REFERENCE, estimator, behaviour_logprobs=BEHAVIOUR)
    torch.testing.assert_close(on, true_kl(logp))
    torch.testing.assert_close(expected(off, BEHAVIOUR), true_kl(logp))


class TestWhatTheNaiveLossesPullAt:
    """Why the value of an estimator is not used as a loss."""

    def test_k1_pulls_nowhere(self):
        out = gradient(lambda logp: expected(kl_value(logp - REFERENCE, "k1"), logp))
        torch.testing.assert_close(out, torch.zeros_like(out))

    def test_k3_pulls_along_the_kl_the_other_way_round(self):
        def reverse(logp):
            return (REFERENCE.exp() * (REFERENCE - logp)).sum()

        out = gradient(lambda logp: expected(kl_value(logp - REFERENCE, "k3"), logp))
        torch.testing.assert_close(out, gradient(reverse))
        assert not torch.allclose(out, analytic(), atol=1e-2)

    def test_k2_pulls_right_on_policy_only(self):
        on = gradient(lambda logp: expected(kl_value(logp - REFERENCE, "k2"), logp))
        torch.testing.assert_close(on, analytic())
        off = gradient(lambda logp: expected(kl_value(logp - REFERENCE, "k2"), BEHAVIOUR))
        assert not torch.allclose(off, analytic(), atol=1e-2)


def test_values_by_hand():
    # d = ln 2: k1 = .693, k2 = .240, k3 = 1/2 - 1 + .693 = .193.
    d = torch.tensor([math.log(2)])
    assert float(kl_value(d, "k1")) == pytest.approx(0.6931, abs=1e-4)
    assert float(kl_value(d, "k2")) == pytest.approx(0.2402, abs=1e-4)
    assert float(kl_value(d, "k3")) == pytest.approx(0.1931, abs=1e-4)
    penalty = kl_penalty(d, torch.zeros(1), "k2", behaviour_logprobs=d - math.log(4))
    assert float(penalty) == pytest.approx(4 * 0.2402, abs=1e-3)


def test_a_large_importance_weight_stops_growing_at_10():
    logp = torch.tensor([-1.0], requires_grad=True)
    penalty = kl_penalty(logp, torch.tensor([-2.0]), "k1", behaviour_logprobs=torch.tensor([-30.0]))
    penalty.sum().backward()
    assert float(penalty.detach()) == pytest.approx(10)
    assert float(logp.grad) == pytest.approx(10)


def test_log_ratios_are_clamped_to_20():
    wide = log_ratio(torch.tensor([0.0, -100.0]), torch.tensor([-100.0, 0.0]))
    assert wide.tolist() == [20, -20]


class TestMismatchKl:
    def test_k3_of_the_sampled_tokens_by_hand(self):
        # r = trainer / behaviour = 2 and 1: (2 - 1 - ln 2 + 0) / 2. The masked token is far off.
        behaviour = torch.tensor([[-2.0, -1.0, 0.0]])
        trainer = behaviour + torch.tensor([[math.log(2), 0.0, -50.0]])
        mask = torch.tensor([[True, True, False]])
        expected_kl = (1 - math.log(2)) / 2
        assert mismatch_kl(trainer, behaviour, mask) == pytest.approx(expected_kl, rel=1e-6)

    def test_tiny_differences_keep_their_digits(self):
        # r - 1 - ln r = d^2 / 2 for small d; float32, or exp(d) - 1, would give 0 or noise.
        behaviour = torch.full((1, 8), -1.0, dtype=torch.float64)
        mask = torch.ones(1, 8, dtype=torch.bool)
        assert mismatch_kl(behaviour + 1e-7, behaviour, mask) == pytest.approx(5e-15, rel=1e-4)

    def test_equal_is_0_and_nothing_is_nan(self):
        logp = torch.tensor([[-1.0, -3.0]])
        assert mismatch_kl(logp, logp, torch.tensor([[True, True]])) == 0
        assert math.isnan(mismatch_kl(logp, logp, torch.tensor([[False, False]])))

    def test_an_impossible_token_is_infinitely_off(self):
        behaviour, trainer = torch.tensor([[-1.0]]), torch.tensor([[-math.inf]])
        assert mismatch_kl(trainer, behaviour, torch.tensor([[True]])) == math.inf
