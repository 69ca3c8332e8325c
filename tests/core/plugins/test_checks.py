"""The checks of plug-ins: right ones pass, and each wrong one is told what is wrong with it."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch

from echoscope.core.config.loss import ClipLossConfig, CustomLossConfig
from echoscope.core.config.settings import CustomAdvantageConfig, GroupRelativeConfig
from echoscope.core.plugins.checks import (
    batch_of,
    check_plugin,
    load_plugins,
    made_up_rollouts,
    outputs_of,
    with_noise_advantages,
)
from echoscope.core.update.advantages import estimate_advantages
from echoscope.core.update.losses import Denominators, compute_loss, rows_with_gradient
from echoscope.text.user_code import UserCodeError, load


@pytest.mark.parametrize(
    ("kind", "name", "params"),
    [
        ("advantage", "own_plugins:grpo", {"eps": 1e-4}),
        ("advantage", "own_plugins:with_targets", {}),
        ("loss", "own_plugins:clip", {"low": 0.1}),
        ("selection", "own_plugins:undecided", {}),
        ("reward", "letters:lower_case_share", {}),
        ("observer", "own_plugins:Counting", {"start": 3}),
    ],
)
def test_a_right_one_passes_every_check(kind, name, params):
    report = check_plugin(kind, name, params)
    assert dict(report.failed) == {}
    further = {"loss": {"microbatches"}, "observer": {"state"}}.get(kind, set())
    assert set(report.passed) == {"loads", "returns", "same twice"} | further


@pytest.mark.parametrize(
    ("kind", "name", "check", "sentence"),
    [
        ("advantage", "nowhere:f", "loads", "cannot import 'nowhere'"),
        ("advantage", "own_plugins:grop", "loads", "no function 'grop'; did you mean 'grpo'"),
        ("advantage", "math:sin", "loads", "built into Python"),
        ("advantage", "unknown", "loads", "'module:function'"),
        ("advantage", "own_plugins:wrong_shape", "returns", r"\(10,\), but must return \(N, L\)"),
        ("advantage", "own_plugins:not_a_number", "returns", "NaN or infinite entries"),
        ("advantage", "own_plugins:beyond_the_end", "returns", "behind the end of trajectories"),
        ("advantage", "own_plugins:rolls_dice", "same twice", "another result for the same step"),
        ("advantage", "own_plugins:writes", "returns", "in line .* of own_plugins.py: .*read-only"),
        ("advantage", "own_plugins:leaves", "returns", "failed in line .*: SystemExit: 0"),
        ("loss", "own_plugins:one_number", "returns", r"the shape \(\), but must return one loss"),
        ("loss", "own_plugins:no_gradient", "returns", "has no gradient"),
        ("loss", "own_plugins:infinite", "returns", "NaN or infinite at"),
        ("loss", "own_plugins:mean_of_microbatch", "microbatches", "another gradient when"),
        ("selection", "own_plugins:keeps_numbers", "returns", "returned float64 .* must return bo"),
        ("selection", "own_plugins:keeps_too_few", "returns", r"of the shape \(1,\)"),
        ("reward", "own_plugins:reward_of_luck", "same twice", "another result"),
        ("observer", "own_plugins:Forgetful", "state", "forgets something between a checkpoint"),
        ("observer", "own_plugins:OneSided", "returns", "both state.* or neither"),
        ("observer", "own_plugins:Blind", "returns", "has no method observe"),
        ("observer", "own_plugins:Shouting", "returns", "'LOUD', but names are lower-case"),
    ],
)
def test_a_wrong_one_is_told_what_is_wrong(kind, name, check, sentence):
    report = check_plugin(kind, name)
    assert list(report.failed) == [check]
    assert re.search(sentence, report.failed[check])
    assert name in report.failed[check]


def test_parameters_must_fit():
    report = check_plugin("loss", "own_plugins:clip", {"hihg": 1})
    assert "unexpected keyword argument 'hihg'" in report.failed["loads"]


def test_an_unknown_kind():
    with pytest.raises(UserCodeError, match="kinds are advantage, loss"):
        check_plugin("gradient", "own_plugins:clip")


def test_an_own_grpo_is_grpo():
    load("advantage", "own_plugins:grpo")
    batch, _ = batch_of(made_up_rollouts())
    own = CustomAdvantageConfig(function="own_plugins:grpo")
    torch.testing.assert_close(
        estimate_advantages(batch, own)[0], estimate_advantages(batch, GroupRelativeConfig())[0]
    )


def test_an_estimator_may_give_the_targets_of_the_critic():
    load("advantage", "own_plugins:with_targets")
    batch, _ = batch_of(made_up_rollouts(), with_values=True)
    config = CustomAdvantageConfig(function="own_plugins:with_targets")
    _, returns = estimate_advantages(batch, config)
    assert returns is not None
    np.testing.assert_array_equal(returns, 0.5 * batch.loss_mask)
    plain = CustomAdvantageConfig(function="own_plugins:grpo")
    load("advantage", "own_plugins:grpo")
    _, returns = estimate_advantages(batch, plain)  # without them: the sum of rewards to come
    assert returns is not None
    assert returns.max() > 0.9


@pytest.mark.parametrize("aggregation", ["token_mean", "seq_mean_token_sum"])
def test_an_own_clip_loss_is_the_clip_loss_with_its_averages(aggregation):
    load("loss", "own_plugins:clip")
    batch = with_noise_advantages(batch_of(made_up_rollouts())[0])
    both = []
    for config in (
        CustomLossConfig(function="own_plugins:clip", aggregation=aggregation, entropy_coef=0.1),
        ClipLossConfig(dual_clip=None, aggregation=aggregation, entropy_coef=0.1),
    ):
        outputs = outputs_of(batch)
        total = compute_loss(outputs, batch, config, Denominators.of(batch, 32)).total
        total.backward()
        both.append((total.detach(), outputs.logprobs.grad, outputs.entropies.grad))
    torch.testing.assert_close(both[0], both[1])


def test_an_own_loss_sees_tokens_without_an_advantage():
    """Only it knows whether they have a gradient."""
    batch, _ = batch_of(made_up_rollouts())
    batch = with_noise_advantages(batch)
    batch.advantages.zero_()
    assert not rows_with_gradient(batch, ClipLossConfig()).any()
    assert rows_with_gradient(batch, CustomLossConfig(function="own_plugins:clip")).all()


def test_a_configuration_is_checked_as_a_whole(make_config):
    own = ("advantage.kind=custom", "advantage.function=own_plugins:grpo")
    load_plugins(make_config(*own, "observers=[own_plugins:Counting]"))
    with pytest.raises(UserCodeError, match="'own_plugins:one_number' returned the shape"):
        load_plugins(make_config(*own, "loss.kind=custom", "loss.function=own_plugins:one_number"))
    with pytest.raises(UserCodeError, match="'own_plugins:keeps_numbers' returned float64"):
        load_plugins(make_config("selection.function=own_plugins:keeps_numbers"))
