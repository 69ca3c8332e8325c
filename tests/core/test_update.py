"""One update: denominators that do not depend on microbatches, ratio 1 on-policy, NaN skipped."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from bench import Bench, make_bench

from echoscope.core.batch import TokenBatch, select_rows
from echoscope.core.config import RunConfig
from echoscope.core.losses import Denominators, compute_loss
from echoscope.core.update import annotate, mismatch_metrics, update

MakeConfig = Callable[..., RunConfig]
LORA = "model.lora={rank: 4, alpha: 8}"
HEAD = ("critic.kind=head", "advantage.kind=gae")
OWN_MODEL = ("critic.kind=model", "advantage.kind=gae")


def full_batch_gradient(bench: Bench, batch: TokenBatch) -> dict[str, torch.Tensor]:
    outputs = bench.policy.outputs(batch, temperature=bench.config.sampling.temperature)
    terms = compute_loss(outputs, batch, bench.config.loss, Denominators.of(batch))
    terms.total.backward()
    return bench.gradients()


class CatchGradients:
    """Stands in for the optimizer and keeps what it was about to apply."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.seen = bench, []

    def accumulate(self) -> None:
        self.bench.optimizer.accumulate()

    def step(self, *, lrs: dict[str, float], grad_clip: float) -> object:
        self.seen.append(self.bench.gradients())
        return self.bench.optimizer.step(lrs=lrs, grad_clip=grad_clip)


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("max_tokens", [1, 60, 200])
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("loss.aggregation=seq_mean_token_mean",),
        ("loss.aggregation=seq_mean_token_sum_norm", "advantage.kind=dr_grpo"),
        ("loss.kind=gspo",),
        ("loss.entropy_coef=0.01", "loss.kl_coef=0.1"),
        HEAD,
        ("context.history_turns=1",),  # a trajectory of several rows
    ],
    ids=lambda settings: settings[0] if settings else "default",
)
def test_the_gradient_does_not_depend_on_microbatches(
    make_config: MakeConfig, settings: tuple[str, ...], max_tokens: int
) -> None:
    bench = make_bench(make_config(*settings, f"optim.max_microbatch_tokens={max_tokens}"))
    batch = bench.batch()
    expected = full_batch_gradient(bench, batch)
    catch = CatchGradients(bench)
    update(bench.policy, catch, batch, bench.config, step=1)  # type: ignore[arg-type]
    (found,) = catch.seen
    assert found.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-4
    for name, gradient in expected.items():
        gap = float((found[name] - gradient).abs().max())
        assert gap < 1e-5 * largest, name


def test_minibatches_split_trajectories_and_use_each_row_once(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("optim.minibatches=3", "optim.epochs=2"))
    batch = bench.batch()
    result = update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert result.metrics["optim/num_updates"] == 6
    assert bench.policy.version == 6
    assert result.trainer_logprobs is None  # weights moved before every row was seen


# -- on-policy -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        (),
        (LORA,),
        HEAD,
        ("sampling.temperature=0.7",),
        ("context.history_turns=1",),
        ("optim.minibatches=2",),
    ],
    ids=lambda settings: settings[0] if settings else "default",
)
def test_on_policy_the_ratio_is_one_and_sampler_and_trainer_agree(
    make_config: MakeConfig, settings: tuple[str, ...]
) -> None:
    bench = make_bench(make_config(*settings))
    rollouts = bench.collect()
    batch, logprobs = bench.prepare(rollouts)
    result = update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    seen = result.trainer_logprobs if logprobs is None else logprobs
    assert seen is not None
    ratio = (seen - batch.behaviour_logprobs)[batch.loss_mask].exp()
    assert float((ratio - 1).abs().max()) < 1e-5
    metrics = mismatch_metrics(seen, batch)
    assert 0 <= metrics["policy/mismatch_kl"] < 1e-10
    assert metrics["policy/mismatch_logprob_max"] < 1e-5
    if bench.config.optim.minibatches == 1:
        assert result.metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-5)
        assert result.metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-5)
        assert result.metrics["policy/clip_low_frac"] == 0.0
        assert result.metrics["policy/clip_high_frac"] == 0.0


def test_after_an_update_the_ratio_is_not_one(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("optim.lr=1e-2"))
    batch = bench.batch()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    with torch.no_grad():
        logprobs = bench.policy.outputs(batch, temperature=1.0).logprobs
    assert mismatch_metrics(logprobs, batch)["policy/mismatch_kl"] > 1e-4


def test_without_logprobs_the_mismatch_is_unknown(make_config: MakeConfig) -> None:
    batch = make_bench(make_config()).batch()
    assert all(math.isnan(value) for value in mismatch_metrics(None, batch).values())
    nothing = select_rows(batch, [])
    assert all(
        math.isnan(value)
        for value in mismatch_metrics(nothing.behaviour_logprobs, nothing).values()
    )


# -- annotating ----------------------------------------------------------------------------------


def test_annotating_costs_nothing_when_nothing_needs_it(make_config: MakeConfig) -> None:
    bench = make_bench(make_config())
    batch = bench.batch()
    annotated, logprobs = annotate(bench.policy, batch, bench.config)
    assert annotated is batch
    assert logprobs is None


def test_annotating_gives_reference_and_values(make_config: MakeConfig) -> None:
    config = make_config(*HEAD, "loss.kl_coef=0.1", "optim.max_microbatch_tokens=60")
    bench = make_bench(config)
    annotated, logprobs = annotate(bench.policy, bench.batch(), config)
    assert annotated.values is not None
    assert annotated.ref_logprobs is not None
    assert logprobs is not None
    mask = annotated.loss_mask
    # Nothing trained yet: sampler, trainer and reference are one policy.
    torch.testing.assert_close(logprobs[mask], annotated.behaviour_logprobs[mask])
    torch.testing.assert_close(annotated.ref_logprobs[mask], annotated.behaviour_logprobs[mask])
    assert not annotated.values.any()


# -- what trains ---------------------------------------------------------------------------------


def test_with_adapters_only_they_change(make_config: MakeConfig) -> None:
    bench = make_bench(make_config(LORA, "optim.lr=1e-2"))
    batch, before = bench.batch(), bench.weights()
    for step in (1, 2):  # at first one of each pair of matrices is zero, and the other has no pull
        update(bench.policy, bench.optimizer, batch, bench.config, step)
    changed = {n for n, w in bench.weights().items() if not torch.equal(w, before[n])}
    assert changed
    assert all("lora_" in name for name in changed)
    assert any("lora_A" in name for name in changed)


@pytest.mark.parametrize("critic", [HEAD, OWN_MODEL])
def test_policy_and_critic_have_their_own_learning_rates(
    make_config: MakeConfig, critic: tuple[str, ...]
) -> None:
    """Adam's first step moves every weight by the learning rate, whatever its gradient."""
    bench = make_bench(make_config(*critic, "critic.lr=0.01", "optim.lr=0.0001"))
    batch, before = bench.batch(), bench.weights()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    after = bench.weights()
    moved = {name: float((after[name] - before[name]).abs().max()) for name in before}
    assert max(v for n, v in moved.items() if n.startswith("model.")) == pytest.approx(
        1e-4, rel=0.05
    )
    assert max(v for n, v in moved.items() if n.startswith("critic.")) == pytest.approx(
        0.01, rel=0.05
    )


def test_learning_rates_follow_the_schedule(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("optim.warmup_steps=3", "optim.lr=0.4"))
    batch = bench.batch()
    found = [
        update(bench.policy, bench.optimizer, batch, bench.config, step).metrics["optim/lr"]
        for step in (1, 2, 3, 4)
    ]
    assert found == pytest.approx([0.1, 0.2, 0.3, 0.4])


def test_nothing_to_train_on_changes_nothing(make_config: MakeConfig) -> None:
    bench = make_bench(make_config())
    nothing, before = select_rows(bench.batch(), []), bench.weights()
    result = update(bench.policy, bench.optimizer, nothing, bench.config, step=1)
    assert all(torch.equal(w, before[n]) for n, w in bench.weights().items())
    assert result.metrics["optim/num_updates"] == 0
    assert result.metrics["optim/num_tokens"] == 0
    assert math.isnan(result.metrics["optim/grad_norm"])
    assert math.isnan(result.metrics["loss/policy"])
    assert bench.policy.version == 0


def test_a_nan_skips_its_optimizer_step_and_no_other(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("optim.minibatches=2"))
    batch = bench.batch()
    assert batch.advantages is not None
    poisoned = batch.advantages.clone()
    poisoned[0][batch.loss_mask[0]] = math.nan
    before = bench.weights()
    result = update(
        bench.policy, bench.optimizer, replace(batch, advantages=poisoned), bench.config, step=1
    )
    assert result.num_skipped == 1
    assert result.metrics["optim/num_skipped"] == 1
    assert result.metrics["optim/num_updates"] == 1
    assert bench.policy.version == 1
    after = bench.weights()
    assert any(not torch.equal(w, before[n]) for n, w in after.items())
    assert all(bool(torch.isfinite(w).all()) for w in after.values())


def test_all_nan_leaves_the_weights_untouched(make_config: MakeConfig) -> None:
    bench = make_bench(make_config(*HEAD))
    batch, before = bench.batch(), bench.weights()
    assert batch.advantages is not None
    broken = replace(batch, advantages=torch.full_like(batch.advantages, math.nan))
    result = update(bench.policy, bench.optimizer, broken, bench.config, step=1)
    assert result.num_skipped == 1
    assert all(torch.equal(w, before[n]) for n, w in bench.weights().items())
    assert bench.policy.version == 0
