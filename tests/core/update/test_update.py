"""One update: denominators that do not depend on microbatches, ratio 1 on-policy, NaN skipped."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from bench import Bench, make_bench
from forwarded import counted_tokens
from held_caches import cache_bytes
from transformers import GenerationConfig

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import causal_model
from echoscope.core.rollout.sources import EnvSource
from echoscope.core.update.assemble import fresh_tokens, pack_kept
from echoscope.core.update.batch import TokenBatch, microbatches, select_rows
from echoscope.core.update.kl import mean_kl
from echoscope.core.update.losses import Denominators, compute_loss
from echoscope.core.update.update import annotate, mismatch_metrics, update
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.envs.pool import EnvPool
from echoscope.store.records import FinishReason, RolloutBatch, Split

MakeConfig = Callable[..., RunConfig]
LORA = "model.lora={rank: 4, alpha: 8}"
HEAD = ("critic.kind=head", "advantage.kind=gae")
TRAINER = ("off_policy.old_logprobs=trainer",)
SEQUENCE_TIS = (*TRAINER, "off_policy={correction: tis, level: sequence}")
OWN_MODEL = ("critic.kind=model", "advantage.kind=gae")


def full_batch_gradient(bench: Bench, batch: TokenBatch) -> dict[str, torch.Tensor]:
    outputs = bench.policy.outputs(batch)
    config = bench.config
    denominators = Denominators.of(batch, config.norm_tokens)
    compute_loss(outputs, batch, config.loss, denominators, config.off_policy).total.backward()
    return bench.gradients()


class CatchGradients:
    """Stands in for the optimizer and keeps what it was about to apply."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.seen = bench, []

    def accumulate(self) -> None:
        self.bench.optimizer.accumulate()

    def step(self, **settings: Any) -> object:
        self.seen.append(self.bench.gradients())
        return self.bench.optimizer.step(**settings)


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
        ("context.history_turns=1", *SEQUENCE_TIS),
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
    (captured,) = catch.seen
    assert captured.keys() == expected.keys()
    largest = max(float(gradient.abs().max()) for gradient in expected.values())
    assert largest > 1e-4
    for name, gradient in expected.items():
        gap = float((captured[name] - gradient).abs().max())
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


SAMPLING = (
    "sampling.top_p=0.7",
    "sampling.top_k=5",
    "sampling.min_p=0.2",
    "sampling={temperature: 0.6, top_p: 0.8, top_k: 40, min_p: 0.02}",
    "sampling={temperature: 1.7, top_p: 0.95}",
    "sampling.top_k=1",
)


@pytest.mark.parametrize("sampling", SAMPLING)
@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("loss.kind=gspo",),
        ("context.history_turns=1",),
        ("engine.reuse_cache=false",),
        (LORA, "loss.kl_coef=0.1"),
        HEAD,
    ],
    ids=lambda settings: settings[0] if settings else "default",
)
def test_the_ratio_is_one_under_every_sampling_setting(
    make_config: MakeConfig, sampling: str, settings: tuple[str, ...]
) -> None:
    """The update computes the very distribution that was sampled from, over several turns."""
    bench = make_bench(make_config(sampling, *settings))
    rollouts = bench.collect()
    batch = with_zeroed_rows(bench.prepare(rollouts)[0], [])
    expected_entropies = torch.tensor(
        [e for t in rollouts.trajectories for turn in t.turns for e in turn.entropies]
    )
    result = update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert result.trainer_logprobs is not None
    ratio = (result.trainer_logprobs - batch.behaviour_logprobs)[batch.loss_mask].exp()
    assert float((ratio - 1).abs().max()) < 1e-5
    assert result.metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert result.metrics["policy/update_entropy"] == pytest.approx(
        float(expected_entropies.mean()), abs=1e-5
    )
    assert result.metrics["policy/clip_low_frac"] == 0
    assert result.metrics["policy/clip_high_frac"] == 0
    if bench.config.loss.kl_coef:  # the adapters are still zero: policy and reference agree
        assert result.metrics["policy/ref_kl"] == pytest.approx(0, abs=1e-10)


def test_the_support_stays_when_the_weights_move(make_config: MakeConfig) -> None:
    """pi_S(x) = p(x) / sum of p over the recorded support S, at any weights."""
    bench = make_bench(make_config("sampling={top_k: 4, temperature: 0.8}", "optim.lr=1e-2"))
    batch = bench.batch()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert batch.supports is not None
    assert int(batch.supports.sizes[batch.loss_mask].max()) == 4
    with torch.no_grad():
        outputs = bench.policy.outputs(batch)
        logits = bench.policy.model(input_ids=batch.input_ids).logits.double() / 0.8
    supports = iter(batch.supports.tokens.split(batch.supports.sizes[batch.loss_mask].tolist()))
    for row, column in batch.loss_mask.nonzero().tolist():
        scores, token = logits[row, column - 1], int(batch.input_ids[row, column])
        support = next(supports)
        assert token in support
        expected = float(scores[token] - scores[support].logsumexp(0))
        assert float(outputs.logprobs[row, column]) == pytest.approx(expected, abs=2e-5)


def test_parts_of_a_batch_keep_the_supports_of_their_rows(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("sampling.top_p=0.8", "context.history_turns=1"))
    batch = bench.batch()
    with torch.no_grad():
        whole = bench.policy.outputs(batch).logprobs
        for part, rows in microbatches(batch, 60):
            logprobs = bench.policy.outputs(part).logprobs
            torch.testing.assert_close(logprobs, whole[rows, : part.width], atol=1e-5, rtol=0)


def test_the_engines_cache_is_released_before_the_update(make_config: MakeConfig) -> None:
    bench = make_bench(make_config())
    envs = bench.config.envs
    pool = EnvPool(envs.train, group_size=envs.group_size, seed=0, split=Split.TRAIN)
    engine = HfEngine(bench.policy.model, config=bench.config.engine)
    source = EnvSource(
        pool,
        engine,
        bench.chat,
        bench.config,
        Split.TRAIN,
        on_finished=lambda finished: None,
        should_abort=lambda: False,
    )
    with counted_tokens() as counts:
        rollouts = source.collect(1, bench.config)
    turns = [turn for each in rollouts.trajectories for turn in each.turns]
    prompts = {tuple(turn.prompt_tokens) for turn in turns if turn.prompt_tokens is not None}
    assert counts.prefilled < sum(map(len, prompts))  # there was a cache
    assert cache_bytes(engine) == 0


def test_after_an_update_the_ratio_is_not_one(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("optim.lr=1e-2"))
    batch = bench.batch()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    with torch.no_grad():
        logprobs = bench.policy.outputs(batch).logprobs
    assert mismatch_metrics(logprobs, batch)["policy/mismatch_kl"] > 1e-4


def test_the_mismatch_by_hand(make_config: MakeConfig) -> None:
    """Two of all tokens differ, by +0.5 and -0.2 nats."""
    batch = make_bench(make_config()).batch()
    logprobs = batch.behaviour_logprobs.clone()
    rows, places = batch.loss_mask.nonzero()[:2].T
    logprobs[rows, places] += torch.tensor([0.5, -0.2])
    n = int(batch.loss_mask.sum())
    weights = [math.exp(0.5), math.exp(-0.2), *[1.0] * (n - 2)]
    metrics = mismatch_metrics(logprobs, batch)
    assert metrics["policy/mismatch_logprob_mean"] == pytest.approx(0.7 / n, rel=1e-4)
    assert metrics["policy/mismatch_logprob_max"] == pytest.approx(0.5, rel=1e-4)
    assert metrics["policy/mismatch_kl"] == pytest.approx(
        (math.expm1(0.5) - 0.5 + math.expm1(-0.2) + 0.2) / n, rel=1e-4
    )
    assert metrics["policy/mismatch_ratio_mean"] == pytest.approx(sum(weights) / n, rel=1e-6)
    assert metrics["policy/mismatch_effective_frac"] == pytest.approx(
        sum(weights) ** 2 / sum(w * w for w in weights) / n, rel=1e-6
    )


def test_the_mismatch_is_that_of_turns_of_the_trainers_own_weights(
    make_config: MakeConfig,
) -> None:
    """The weights moved by 0.3 nats since the stale tokens; the engine is wrong by 0.01."""
    bench = make_bench(make_config())
    rollouts = bench.collect()
    first, *others = (group for group in rollouts.groups)
    stale = tuple(
        replace(t, turns=tuple(replace(turn, policy_version=4) for turn in t.turns)) for t in first
    )
    fresh = [
        tuple(replace(t, turns=tuple(replace(k, policy_version=5) for k in t.turns)) for t in group)
        for group in others
    ]
    rollouts = RolloutBatch(groups=(stale, *fresh))
    batch, _ = bench.prepare(rollouts)
    selection = select_groups(rollouts, bench.config.selection)
    is_fresh = fresh_tokens(batch, rollouts, selection, 5)
    in_first = torch.tensor([index < len(first) for index in batch.trajectory_index.tolist()])
    assert torch.equal(is_fresh, batch.loss_mask & ~in_first[:, None])
    wrong = torch.where(in_first[:, None], 0.3, 0.01)
    logprobs = batch.behaviour_logprobs + wrong * batch.loss_mask
    metrics = mismatch_metrics(logprobs, batch, is_fresh)
    assert metrics["policy/mismatch_logprob_max"] == pytest.approx(0.01, rel=1e-3)
    assert metrics["policy/mismatch_kl"] == pytest.approx(math.expm1(0.01) - 0.01, rel=1e-2)
    assert metrics["policy/stale_kl"] == pytest.approx(math.expm1(0.3) - 0.3, rel=1e-3)
    assert "policy/stale_kl" not in mismatch_metrics(logprobs, batch)
    nothing = mismatch_metrics(logprobs, batch, torch.zeros_like(is_fresh))
    assert math.isnan(nothing["policy/mismatch_kl"])


def test_without_logprobs_the_mismatch_is_unknown(make_config: MakeConfig) -> None:
    batch = make_bench(make_config()).batch()
    assert all(math.isnan(value) for value in mismatch_metrics(None, batch).values())
    nothing = select_rows(batch, [])
    assert all(
        math.isnan(value)
        for value in mismatch_metrics(nothing.behaviour_logprobs, nothing).values()
    )


# -- stop tokens ---------------------------------------------------------------------------------


def test_every_stop_token_of_the_generation_config_ends_a_reply_and_trains(
    make_config: MakeConfig, tiny_model: str, tmp_path: Path
) -> None:
    """A model may name several; a sampled one stays the last trained token of its reply."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_model, folder)
    common = most_sampled(make_bench(make_config()).collect())
    GenerationConfig(eos_token_id=[1, common]).save_pretrained(folder)
    bench = make_bench(make_config(f"model.path={folder}"))
    assert common in bench.chat.stop_token_ids
    turns = [turn for t in bench.collect().trajectories for turn in t.turns]
    ended = [turn for turn in turns if turn.response_tokens[-1] == common]
    assert ended
    assert all(turn.finish_reason is FinishReason.STOP for turn in ended)
    assert not any(common in turn.response_tokens[:-1] for turn in turns)
    batch = bench.batch()
    assert int((batch.input_ids[batch.loss_mask] == common).sum()) == len(ended)


def most_sampled(rollouts: RolloutBatch) -> int:
    tokens = [i for t in rollouts.trajectories for turn in t.turns for i in turn.response_tokens]
    return int(Counter(int(i) for i in tokens if i != 1).most_common(1)[0][0])


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
    assert logprobs is None  # the update's own pass gives them
    mask = annotated.loss_mask
    # Nothing trained yet: sampler and reference are one policy.
    torch.testing.assert_close(annotated.ref_logprobs[mask], annotated.behaviour_logprobs[mask])
    assert not annotated.values.any()


def count_passes(bench: Bench) -> list[int]:
    """Rows of every pass through the policy's own layers, as they come."""
    rows: list[int] = []
    layer = causal_model(bench.policy.model).base_model.layers[0]
    layer.register_forward_hook(lambda module, args, output: rows.append(len(args[0])))
    return rows


@pytest.mark.parametrize(
    ("settings", "passes"),
    [
        ((), 0),
        (("loss.kl_coef=0.1",), 0),  # the reference is another model
        ((*OWN_MODEL, "loss.kl_coef=0.1"), 0),
        (HEAD, 1),  # the head reads the policy's own layers
        (("optim.minibatches=2",), 1),
    ],
    ids=str,
)
def test_annotating_makes_no_pass_that_the_update_makes_anyway(
    make_config: MakeConfig, settings: tuple[str, ...], passes: int
) -> None:
    config = make_config(*settings, "optim.max_microbatch_tokens=100000")
    bench = make_bench(config)
    rollouts = bench.collect()
    rows = count_passes(bench)
    bench.prepare(rollouts)
    assert len(rows) == passes


def test_values_without_a_pass_for_log_probs_are_the_same(make_config: MakeConfig) -> None:
    for settings in (HEAD, OWN_MODEL):
        bench = make_bench(make_config(*settings))
        batch = bench.batch()
        assert bench.policy.critic is not None
        torch.nn.init.normal_(bench.policy.critic_parameters()[-2])
        with torch.no_grad():
            values = bench.policy.outputs(batch).values
            assert values is not None
            assert values.abs().max() > 0.01
            torch.testing.assert_close(bench.policy.values(batch), values)


# -- rows without gradient -----------------------------------------------------------------------


def with_zeroed_rows(batch: TokenBatch, rows: list[int]) -> TokenBatch:
    assert batch.advantages is not None
    advantages = torch.where(batch.loss_mask, torch.ones_like(batch.advantages), 0.0)
    advantages[rows] = 0.0
    return replace(batch, advantages=advantages)


def test_rows_without_advantage_are_not_forwarded(make_config: MakeConfig) -> None:
    bench = make_bench(make_config("model.packing=false"))
    batch = with_zeroed_rows(bench.batch(), [0, 2])
    expected = full_batch_gradient(bench, batch)
    rows, catch = count_passes(bench), CatchGradients(bench)
    result = update(bench.policy, catch, batch, bench.config, step=1)  # type: ignore[arg-type]
    assert sum(rows) == batch.num_rows - 2
    for name, gradient in catch.seen[0].items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-4, atol=1e-6)
    idle = int(batch.loss_mask[[0, 2]].sum()) / batch.num_loss_tokens
    assert result.metrics["optim/idle_token_frac"] == pytest.approx(idle)
    assert result.metrics["policy/advantage_mean"] == pytest.approx(1 - idle)
    assert result.metrics["policy/ratio_mean"] == pytest.approx(1, abs=1e-5)
    assert result.trainer_logprobs is not None
    unknown = result.trainer_logprobs.isnan()
    assert torch.equal(unknown.any(1).nonzero()[:, 0], torch.tensor([0, 2]))
    assert mismatch_metrics(result.trainer_logprobs, batch)["policy/mismatch_logprob_max"] < 1e-5


@pytest.mark.parametrize(
    "setting", ["loss.entropy_coef=0.01", "loss.kl_coef=0.1", "critic.kind=head"]
)
def test_rows_without_advantage_are_forwarded_for_other_terms(
    make_config: MakeConfig, setting: str
) -> None:
    bench = make_bench(make_config(setting, "model.packing=false"))
    batch = with_zeroed_rows(bench.batch(), [0, 2])
    rows = count_passes(bench)
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert sum(rows) == batch.num_rows


def test_a_step_without_gradient_moves_nothing_and_says_so(make_config: MakeConfig) -> None:
    """Momentum of earlier steps must not move the weights on a step that has no signal."""
    bench = make_bench(make_config("optim.lr=1e-2"))
    batch = bench.batch()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    before, version = bench.weights(), bench.policy.version
    nothing = with_zeroed_rows(batch, list(range(batch.num_rows)))
    result = update(bench.policy, bench.optimizer, nothing, bench.config, step=2)
    assert all(torch.equal(w, before[n]) for n, w in bench.weights().items())
    assert bench.policy.version == version
    assert result.metrics["optim/num_without_gradient"] == 1
    assert result.metrics["optim/num_updates"] == 0
    assert result.metrics["optim/grad_norm"] == 0
    assert result.metrics["loss/policy"] == 0


# -- clipping ------------------------------------------------------------------------------------


@pytest.mark.parametrize("critic", [HEAD, OWN_MODEL])
def test_a_critic_with_a_large_gradient_does_not_scale_the_policys(
    make_config: MakeConfig, critic: tuple[str, ...]
) -> None:
    """The policy's norm, and the step it takes, are those of its own gradient."""
    bench = make_bench(make_config(*critic, "critic.detach=true" if critic is HEAD else "seed=0"))
    batch = bench.batch()
    assert batch.returns is not None
    huge = replace(batch, returns=batch.returns + 100.0 * batch.loss_mask)
    alone = full_batch_gradient(bench, batch)
    norm = math.sqrt(sum(float(g.square().sum()) for g in alone.values()))
    config = bench.config
    catch = CatchClipped(bench)
    result = update(bench.policy, catch, huge, config, step=1)  # type: ignore[arg-type]
    assert result.metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert result.metrics["optim/critic_grad_norm"] > 20 * norm
    kept = min(1.0, config.optim.grad_clip / norm)
    assert catch.moment_norm() == pytest.approx(kept * norm * (1 - 0.9), rel=1e-3)
    assert ("optim/critic_head_grad_norm" in result.metrics) == (critic is OWN_MODEL)


class CatchClipped:
    """The optimizer itself; afterwards the first moments tell the gradient that it applied."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def accumulate(self) -> None:
        self.bench.optimizer.accumulate()

    def step(self, **settings: Any) -> object:
        return self.bench.optimizer.step(**settings)

    def moment_norm(self) -> float:
        """Of the policy."""
        state = self.bench.optimizer.state_tensors()
        size = len(self.bench.policy.policy_parameters())
        moments = [state[f"{i}.exp_avg"] for i in range(size) if f"{i}.exp_avg" in state]
        return math.sqrt(sum(float(m.square().sum()) for m in moments))


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
    rates = [
        update(bench.policy, bench.optimizer, batch, bench.config, step).metrics["optim/lr"]
        for step in (1, 2, 3, 4)
    ]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.4])


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


# -- old log-probs of the trainer ----------------------------------------------------------------


def lie(batch: TokenBatch, nats: float) -> TokenBatch:
    """The batch as an engine would have recorded it that says a constant too much."""
    return replace(batch, behaviour_logprobs=batch.behaviour_logprobs + nats * batch.loss_mask)


def num_passes(bench: Bench, work: Callable[[], object]) -> int:
    """Rows that went through the model."""
    rows = []
    hook = bench.policy.model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: rows.append(len(output))
    )
    work()
    hook.remove()
    return sum(rows)


@pytest.mark.parametrize("kind", ["clip", "gspo", "cispo"])
def test_with_one_update_the_ratio_is_exactly_one_and_costs_no_pass(
    make_config: MakeConfig, kind: str
) -> None:
    """Whatever the engine recorded."""
    bench = make_bench(make_config(f"loss.kind={kind}", *TRAINER))
    rollouts = bench.collect()
    batch, logprobs = bench.prepare(rollouts)
    assert logprobs is None
    assert num_passes(bench, lambda: bench.prepare(rollouts)) == 0
    batch = lie(batch, 0.05)
    result = update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert result.metrics["policy/ratio_mean"] == result.metrics["policy/ratio_max"] == 1.0
    assert result.metrics["policy/clip_high_frac"] == 0.0
    assert result.trainer_logprobs is not None
    gap = (result.trainer_logprobs - batch.behaviour_logprobs)[batch.loss_mask]
    assert gap.mean() == pytest.approx(-0.05, abs=1e-5)  # what is stored is still the trainer's


def test_the_gradient_ignores_what_the_engine_recorded(make_config: MakeConfig) -> None:
    """Without a correction; with the sampler's numbers it would be off by 5 %."""
    bench = make_bench(make_config(*TRAINER))
    honest, gradients = bench.batch(), []
    for batch in (honest, lie(honest, 0.05)):
        catch = CatchGradients(bench)
        before = bench.weights()
        update(bench.policy, catch, batch, bench.config, step=1)  # type: ignore[arg-type]
        gradients.append(catch.seen[0])
        with torch.no_grad():
            for name, weight in bench.policy.model.named_parameters():
                weight.copy_(before[f"model.{name}"])
    for name, gradient in gradients[0].items():
        assert torch.equal(gradients[1][name], gradient), name


def test_with_several_updates_the_old_policy_is_that_before_the_first(
    make_config: MakeConfig,
) -> None:
    """One pass serves the old log-probs and the measure of mismatch, as without a correction."""
    settings = ("optim.minibatches=2", "optim.lr=1e-2", "model.packing=false")
    bench = make_bench(make_config(*settings, *TRAINER))
    rollouts = bench.collect()
    batch, logprobs = bench.prepare(rollouts)
    assert logprobs is not None
    assert torch.equal(batch.old_logprobs, logprobs)
    plain = make_bench(make_config(*settings))
    passes = [num_passes(b, lambda b=b: b.prepare(rollouts)) for b in (bench, plain)]
    assert passes[0] == passes[1] == batch.num_rows
    result = update(bench.policy, bench.optimizer, lie(batch, 0.05), bench.config, step=1)
    assert result.metrics["policy/ratio_mean"] != 1.0  # the second update starts elsewhere
    assert result.metrics["policy/approx_kl"] > 1e-6


def test_one_weight_for_a_trajectory_of_several_rows_takes_a_pass_before_the_update(
    make_config: MakeConfig,
) -> None:
    bench = make_bench(make_config("context.history_turns=1", *SEQUENCE_TIS))
    batch, logprobs = bench.prepare(bench.collect())
    assert batch.num_rows > len(set(batch.trajectory_index.tolist()))
    assert logprobs is not None
    assert batch.trajectory_log_ratio is not None
    assert float(batch.trajectory_log_ratio.abs().max()) < 1e-4
    metrics = update(bench.policy, bench.optimizer, batch, bench.config, step=1).metrics
    assert metrics["off_policy/sequence_weight_mean"] == pytest.approx(1, abs=1e-4)
    assert metrics["off_policy/effective_frac"] == pytest.approx(1, abs=1e-4)


def test_the_kl_in_the_reward_is_that_of_the_trainer_where_its_log_probs_are_the_old_ones(
    make_config: MakeConfig,
) -> None:
    """What a lying engine recorded is no distance from the reference."""
    penalty = "reward.kl={coef: 0.1, estimator: k1}"
    for settings, expected in (((), 0.05), (TRAINER, 0.0)):
        bench = make_bench(make_config(penalty, *settings))
        packed, _ = pack_kept(
            rollouts := bench.collect(),
            select_groups(rollouts, bench.config.selection),
            bench.config,
            bench.chat,
        )
        batch, _ = annotate(bench.policy, lie(packed, 0.05), bench.config)
        assert bench.config.reward.kl is not None
        assert mean_kl(batch, bench.config.reward.kl) == pytest.approx(expected, abs=1e-5)


# -- the output layer in float32 -----------------------------------------------------------------
