"""The bias of the gradient with an engine that is stale or lies, over all sequences: exact numbers.

A table of logits over 4 tokens, sequences of 4: 256 of them. Bias is the distance from the policy
gradient over its length.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from functools import cache
from pathlib import Path

import pytest
import torch
from enumerated import World, bias, cosine
from torch import Tensor

from echoscope.core.config.loss import CispoLossConfig, ClipLossConfig, GspoLossConfig, LossConfig
from echoscope.core.config.settings import OffPolicyConfig

SUM = "seq_mean_token_sum"
CLIP = ClipLossConfig(aggregation=SUM)
LOSSES = (CLIP, GspoLossConfig(aggregation=SUM), CispoLossConfig(aggregation=SUM))
SAMPLER = OffPolicyConfig()
TRAINER = OffPolicyConfig(old_logprobs="trainer")
UNCAPPED = OffPolicyConfig(old_logprobs="trainer", correction="tis", cap=None)
BY_SEQUENCE = UNCAPPED.model_copy(update={"level": "sequence"})
LIE = 0.05


@cache
def world(length: int = 4) -> World:
    return World.of(vocabulary=4, length=length, seed=0)


@cache
def policies(length: int = 4) -> tuple[Tensor, Tensor]:
    """(the policy, what it was three updates before): gradient steps of length 0.1."""
    here = world(length)
    random = torch.Generator().manual_seed(1)
    start = now = 0.5 * torch.randn(
        here.num_contexts, here.vocabulary, generator=random, dtype=torch.float64
    )
    for _ in range(3):
        gradient = here.policy_gradient(now)
        now = now + 0.1 * gradient / gradient.norm()
    return now, start


def expected_gradient(
    engine: str, loss: LossConfig, off_policy: OffPolicyConfig, length: int = 4
) -> Tensor:
    """The expected gradient of the update under an engine."""
    here, (now, before) = world(length), policies(length)
    own = here.logprobs_NT(now)
    old = here.logprobs_NT(before)
    sampled, recorded = {
        "honest": (own, own),
        "stale": (old, old),
        "lying": (own, own + LIE),
    }[engine]
    return here.update_gradient(
        now, sampled_NT=sampled, recorded_NT=recorded, loss=loss, off_policy=off_policy
    )


def right(length: int = 4) -> Tensor:
    return world(length).policy_gradient(policies(length)[0])


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_with_an_honest_engine_every_method_gives_the_policy_gradient(loss: LossConfig) -> None:
    for off_policy in (SAMPLER, TRAINER, UNCAPPED, BY_SEQUENCE):
        assert bias(expected_gradient("honest", loss, off_policy), right()) < 1e-12


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_three_updates_old_the_bias_is_11_percent_and_sequence_weights_take_it_away(
    loss: LossConfig,
) -> None:
    assert bias(expected_gradient("stale", loss, TRAINER), right()) == pytest.approx(
        0.113, abs=5e-4
    )
    assert bias(expected_gradient("stale", loss, BY_SEQUENCE), right()) < 1e-12


def test_gspo_on_stale_samples_is_wrong_in_direction_too() -> None:
    """Its limits of a few ten-thousandths cut most sequences of another policy."""
    gradient = expected_gradient("stale", LOSSES[1], SAMPLER)
    assert bias(gradient, right()) > 1.5
    assert cosine(gradient, right()) < 0


def test_weights_of_tokens_leave_the_bias_of_what_stands_around_the_token() -> None:
    """A token's weight knows nothing of how likely its prefix and its continuation were."""
    here, (now, before) = world(), policies()
    gradient = expected_gradient("stale", CLIP, UNCAPPED)
    assert bias(gradient, right()) == pytest.approx(0.1057, abs=5e-4)  # 0.113 without weights
    old = here.logprobs_NT(before)
    logits = now.clone().requires_grad_()
    own = here.logprobs_NT(logits)
    ratio_NT = (own.detach() - old).exp()
    around_NT = ratio_NT.prod(1)[:, None] / ratio_NT
    weight_NT = old.sum(1).exp()[:, None] * ratio_NT * (around_NT - 1)
    rest = (weight_NT * here.advantages_N(now)[:, None] * own).sum()
    (remaining,) = torch.autograd.grad(rest, logits)
    torch.testing.assert_close(right() - gradient, remaining)
    # With sequences of one token nothing stands around it.
    assert bias(expected_gradient("stale", CLIP, UNCAPPED, length=1), right(1)) < 1e-12
    assert bias(expected_gradient("stale", CLIP, TRAINER, length=1), right(1)) > 0.05


def test_a_cap_leaves_the_bias_of_what_it_cuts() -> None:
    here, (now, before) = world(), policies()
    capped = BY_SEQUENCE.model_copy(update={"cap": 1.05})
    gradient = expected_gradient("stale", CLIP, capped)
    logits = now.clone().requires_grad_()
    own_N, old_N = here.logprobs_NT(logits).sum(1), here.logprobs_NT(before).sum(1)
    excess_N = ((own_N.detach() - old_N).exp() - 1.05).clamp(min=0)
    cut = (old_N.exp() * excess_N * here.advantages_N(now) * own_N).sum()
    (lost,) = torch.autograd.grad(cut, logits)
    torch.testing.assert_close(right() - gradient, lost)
    assert 0.01 < bias(gradient, right()) < 0.1
    assert (
        bias(expected_gradient("stale", CLIP, capped.model_copy(update={"cap": 2.0})), right())
        < 1e-12
    )


def test_an_engine_that_lies_by_a_twentieth_of_a_nat_scales_the_gradient() -> None:
    """It samples from the policy and records 0.05 nats too much."""
    gradient = expected_gradient("lying", CLIP, SAMPLER)
    assert bias(gradient, right()) == pytest.approx(1 - math.exp(-LIE), rel=1e-9)  # 4.9 %
    assert cosine(gradient, right()) == pytest.approx(1)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.kind)
def test_a_lie_is_gone_with_the_trainers_own_log_probs(loss: LossConfig) -> None:
    assert bias(expected_gradient("lying", loss, TRAINER), right()) < 1e-12


def test_weights_believe_the_lie() -> None:
    """They are made from the false record: over a sequence of four tokens it counts four times."""
    assert bias(expected_gradient("lying", CLIP, UNCAPPED), right()) == pytest.approx(
        1 - math.exp(-LIE)
    )
    assert bias(expected_gradient("lying", CLIP, BY_SEQUENCE), right()) == pytest.approx(
        1 - math.exp(-4 * LIE)
    )


def test_gspo_loses_half_of_its_gradient_to_a_lie() -> None:
    """A ratio of 0.951 is far below its lower limit: all that should become rarer is cut."""
    assert bias(expected_gradient("lying", LOSSES[1], SAMPLER), right()) > 0.5


def test_the_mean_ratio_tells_a_lie_from_other_weights() -> None:
    """E[pi / mu] is 1 if the engine samples from what it records, however old it is."""
    here, (now, before) = world(), policies()
    own, old = here.logprobs_NT(now), here.logprobs_NT(before)

    def mean_ratio(sampled: Tensor, recorded: Tensor) -> float:
        probability_N = sampled.sum(1).exp()
        return float((probability_N[:, None] * (own - recorded).exp()).sum() / own.shape[1])

    assert mean_ratio(old, old) == pytest.approx(1, abs=1e-12)
    assert mean_ratio(own, own + LIE) == pytest.approx(math.exp(-LIE), abs=1e-12)


def test_the_table_in_the_docs_is_what_the_benchmark_prints() -> None:
    root = Path(__file__).parents[3]
    spec = importlib.util.spec_from_file_location("off_policy", root / "benchmarks/off_policy.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(root / "benchmarks")
        spec.loader.exec_module(module)
    shares = {(engine, method): share for engine, method, share, _ in module.exact()}
    page = (root / "docs" / "algorithms.md").read_text(encoding="utf-8")
    names = {
        "the same with `gspo`": "sampler's log-probs, gspo",
        "`tis`, token": "tis, token",
        "`tis`, sequence": "tis, sequence",
        "`mis`, token": "mis, token",
        "`mis`, sequence, 0.9 to 1.1": "mis, sequence, 0.9 to 1.1",
    }
    table = page.split("| method | stale | other precision | wrong records |\n")[1].split("\n\n")[0]
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in table.split("\n")[1:]]
    assert len(rows) == 7
    for method, *cells in rows:
        for engine, cell in zip(("stale", "differs", "lies"), cells, strict=True):
            share = 100 * shares[engine, names.get(method, method)]
            expected = "**0**" if share < 1e-9 else f"{share:.1f} %"
            assert cell == expected, (engine, method)
