"""Ranks train as one process does: the same loss, gradients, weights, metrics and checkpoints.

The ranks are processes of their own over gloo, started as a run starts them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from traceback import StackSummary
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from bench import Bench, make_bench
from torch.distributed.checkpoint import CheckpointException

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.optim import Optimizer
from echoscope.core.policy import build_policy
from echoscope.core.update.batch import TokenBatch, select_rows
from echoscope.core.update.learners import ranked as ranked_module
from echoscope.core.update.learners import worker
from echoscope.core.update.learners.alone import SHARDS_NAME, read_shards
from echoscope.core.update.learners.processes import (
    RankError,
    Ranks,
    check_ranks,
    start_ranks,
)
from echoscope.core.update.learners.ranked import RankedLearner, ShardedLearner
from echoscope.core.update.learners.world import World
from echoscope.core.update.update import retrying, update, updates_per_step
from echoscope.diagnostics.measure.gradients import GradientMemoryError
from echoscope.diagnostics.measure.information.cross_scores import ScoringError

pytestmark = pytest.mark.ranks
MakeConfig = Callable[..., RunConfig]

CASES = {
    "clip": (),
    "many parts": ("optim.max_microbatch_tokens=40",),
    "gspo": ("loss.kind=gspo", "optim.max_microbatch_tokens=60"),
    "cispo with entropy": ("loss.kind=cispo", "loss.entropy_coef=0.01"),
    "sequence means": ("loss.aggregation=seq_mean_token_mean",),
    "two epochs of two minibatches": ("optim.epochs=2", "optim.minibatches=2"),
    "penalty to a reference": ("loss.kl_coef=0.1",),
    "value head": ("advantage.kind=gae", "critic.kind=head"),
    "value head that does not move the trunk": (
        "advantage.kind=gae",
        "critic={kind: head, detach: true}",
    ),
    "critic of its own": ("advantage.kind=gae", "critic.kind=model"),
    "critic warms up": ("advantage.kind=gae", "critic={kind: model, warmup_steps: 1}"),
    "adapters": ("model.lora={rank: 4}", "loss.kl_coef=0.1"),
    "padded rows": ("model.packing=false",),
    "activations made again": ("model.gradient_checkpointing=true",),
    "truncated sampling": ("sampling={top_k: 5, temperature: 0.8}",),
    "importance weights": ("off_policy={old_logprobs: trainer, correction: tis}",),
}

COSTS = ("optim/num_forwarded_tokens", "optim/forwarded_frac")
"""Finer parts repeat beginnings that rows share."""


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    started = start_ranks(request.param, "cpu")
    yield started
    started.close()


def ranked(bench: Bench, config: RunConfig, ranks: Ranks) -> RankedLearner:
    """The bench's weights on all ranks."""
    policy = build_policy(config.model, config.critic, seed=config.seed)
    policy.model.load_state_dict(bench.policy.model.state_dict())
    return RankedLearner(policy, config, ranks)


def first_moments(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """The first step's clipped gradients but for a factor."""
    return {k: t for k, t in optimizer.state_tensors().items() if k.endswith("exp_avg")}


def saved(together: RankedLearner, config: RunConfig, folder: Path) -> dict[str, torch.Tensor]:
    """The optimizer's state as the ranks write it, put together again."""
    together.save(folder)
    whole = build_policy(config.model, config.critic, seed=config.seed)
    return read_shards(Optimizer(whole.parameter_groups(), config.optim), folder / SHARDS_NAME)


def masters_of(state: dict[str, torch.Tensor]) -> list[str]:
    """Keys of the float32 weights, in the order of the parameters."""
    keys = [key for key in state if key.endswith(".master")]
    return sorted(keys, key=lambda key: int(key.partition(".")[0]))


def assert_equal_numbers(
    ours: dict[str, float], theirs: dict[str, float], *, rel: float = 2e-5
) -> None:
    assert ours.keys() == theirs.keys()
    for key, value in theirs.items():
        if key not in COSTS:
            both_nan = math.isnan(ours[key]) and math.isnan(value)
            assert both_nan or ours[key] == pytest.approx(value, rel=rel, abs=1e-6), key


@pytest.mark.parametrize("case", CASES)
def test_ranks_train_as_one_process(
    make_config: MakeConfig, ranks: Ranks, tmp_path: Path, case: str
) -> None:
    config = make_config(*CASES[case])
    alone = make_bench(config)
    start = alone.weights()
    together = ranked(alone, config, ranks)
    for step in (1, 2):
        batch = alone.batch(step)
        theirs = update(alone.policy, alone.optimizer, batch, config, step)
        ours = together.update(batch, config, step)
        assert ours.metrics["loss/total"] == pytest.approx(theirs.metrics["loss/total"], abs=1e-6)
        assert_equal_numbers(ours.metrics, theirs.metrics)
        if theirs.trainer_logprobs is not None:
            torch.testing.assert_close(
                ours.trainer_logprobs, theirs.trainer_logprobs, atol=1e-4, rtol=0, equal_nan=True
            )
        if step == 1 and updates_per_step(config) == 1:
            ours_of = saved(together, config, tmp_path)
            for name, moment in first_moments(alone.optimizer).items():
                largest = max(float(moment.abs().max()), 1e-8)
                assert float((ours_of[name] - moment).abs().max()) / largest < 1e-5, name
    assert together.policy.version == alone.policy.version
    ours_now = replace(alone, policy=together.policy).weights()
    for name, weight in alone.weights().items():
        gap, moved = (ours_now[name] - weight).norm(), (weight - start[name]).norm()
        assert float(gap) <= 2e-3 * float(moved), name


def test_gradients_that_are_summed_after_each_part(
    make_config: MakeConfig, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for models whose whole gradient is too large for a rank."""
    config = make_config("optim.max_microbatch_tokens=40")
    alone = make_bench(config)
    monkeypatch.setattr(ranked_module, "sums_each_part", lambda num_trained: True)
    together = ranked(alone, config, ranks)
    batch = alone.batch()
    theirs = update(alone.policy, alone.optimizer, batch, config, 1)
    assert_equal_numbers(together.update(batch, config, 1).metrics, theirs.metrics)


def test_values_and_references_are_filled_in_on_every_row(
    make_config: MakeConfig, ranks: Ranks
) -> None:
    config = make_config(
        "advantage.kind=gae", "critic.kind=head", "loss.kl_coef=0.1", "optim.epochs=2"
    )
    bench = make_bench(config)
    together = ranked(bench, config, ranks)
    batch = bench.batch()
    theirs, their_logprobs = bench.learner.annotate(batch, config)
    ours, our_logprobs = together.annotate(batch, config)
    for own, other in (
        (ours.values, theirs.values),
        (ours.ref_logprobs, theirs.ref_logprobs),
        (our_logprobs, their_logprobs),
    ):
        assert own is not None
        torch.testing.assert_close(own, other, atol=1e-5, rtol=0)


@pytest.mark.parametrize("num_rows", [0, 1, 3])
def test_a_step_with_fewer_rows_than_ranks(
    make_config: MakeConfig, ranks: Ranks, num_rows: int
) -> None:
    """Ranks without rows join all the same; a step without any leaves the weights alone."""
    config = make_config()
    alone = make_bench(config)
    together = ranked(alone, config, ranks)
    batch = few_rows(alone.batch(), num_rows)
    theirs = update(alone.policy, alone.optimizer, batch, config, 1)
    assert_equal_numbers(together.update(batch, config, 1).metrics, theirs.metrics)
    assert together.policy.version == alone.policy.version == (1 if num_rows else 0)


def few_rows(batch: TokenBatch, num_rows: int) -> TokenBatch:
    """The first rows that have an advantage."""
    assert batch.advantages is not None
    matters = (batch.advantages * batch.loss_mask).abs().sum(1).nonzero()[:, 0]
    return select_rows(batch, matters[:num_rows])


def test_a_gradient_of_nan_moves_no_rank(make_config: MakeConfig, ranks: Ranks) -> None:
    """One token of one row: the rank that forwards it decides for all."""
    config = make_config()
    alone = make_bench(config)
    together = ranked(alone, config, ranks)
    batch = alone.batch()
    assert batch.advantages is not None
    row, column = batch.loss_mask.nonzero()[0].tolist()
    before = {name: p.clone() for name, p in together.policy.model.named_parameters()}
    batch.advantages[row, column] = math.nan
    result = together.update(batch, config, 1)
    assert result.num_skipped == 1
    for name, parameter in together.policy.model.named_parameters():
        assert torch.equal(parameter, before[name])


def test_a_rank_that_cannot_write_its_part_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        cause = OSError(28, "No space left on device")
        raise CheckpointException("write", {1: (cause, StackSummary())})

    monkeypatch.setattr(ranked_module.dcp, "save", refuse)
    learner = SimpleNamespace(_state=dict)
    with pytest.raises(OSError, match=r"rank 1: .*No space left on device"):
        ShardedLearner.save(learner, tmp_path)  # type: ignore[arg-type]


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_ranks(2, "cuda")
    check_ranks(8, "cpu")
    with pytest.raises(ConfigError, match=r"trainer\.ranks is 3, but torch sees 2 CUDA devices"):
        check_ranks(3, "cuda")


def test_memory_that_runs_out_on_a_rank_is_not_tried_again(
    make_config: MakeConfig,
) -> None:
    """The other ranks wait in a collective that this one has left."""
    config = make_config("optim.max_microbatch_tokens=40")
    bench = make_bench(config)
    bench.policy.world = World(rank=1, size=2)

    def run_out() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError, match=r"on rank 1: resume with .* below 40, or"):
        retrying(run_out, bench.policy, config)


BROKEN_DOWN = {
    "clip": ("optim.max_microbatch_tokens=60",),
    "three terms": ("loss.entropy_coef=0.1", "loss.kl_coef=0.1"),
    "value head": ("advantage.kind=gae", "critic.kind=head", "loss.entropy_coef=0.1"),
    "critic of its own": ("advantage.kind=gae", "critic.kind=model"),
    "adapters": ("model.lora={rank: 4}", "loss.kl_coef=0.1"),
    "activations made again": ("model.gradient_checkpointing=true", "loss.entropy_coef=0.1"),
}


@pytest.mark.parametrize("case", BROKEN_DOWN)
def test_ranks_take_a_gradient_apart_as_one_process(
    make_config: MakeConfig, ranks: Ranks, case: str
) -> None:
    """Between two updates, which it must leave as they are."""
    config = make_config("envs.group_size=3", *BROKEN_DOWN[case])
    alone = make_bench(config)
    together = ranked(alone, config, ranks)
    for step in (1, 2):
        rollouts = alone.collect(step)
        theirs = alone.learner.gradients(rollouts, config, alone.chat)
        ours = together.gradients(rollouts, config, alone.chat)
        assert ours.buckets == theirs.buckets
        assert_equal_numbers(dict(ours.values), dict(theirs.values), rel=1e-3)
        batch, _ = alone.prepare(rollouts)
        metrics = update(alone.policy, alone.optimizer, batch, config, step).metrics
        assert_equal_numbers(together.update(batch, config, step).metrics, metrics)


@pytest.mark.parametrize("case", ["clip", "adapters"])
def test_ranks_score_reasonings_as_one_process(
    make_config: MakeConfig, ranks: Ranks, case: str
) -> None:
    """Prompts of uneven lengths, fewer than ranks and more; before an update and after it."""
    config = make_config(*CASES[case])
    alone = make_bench(config)
    together = ranked(alone, config, ranks)
    draw = np.random.default_rng(0)
    batch = alone.batch()
    for num_prompts in (1, 3, 5):
        prompts = [draw.integers(0, 290, size) for size in range(3, 3 + num_prompts)]
        replies = [[draw.integers(0, 290, size) for size in (1, 4, 9)]] * num_prompts
        scorer, expected = together.scorer(0.7), alone.learner.scorer(0.7)
        for ours, theirs in zip(
            scorer.score(prompts, replies), expected.score(prompts, replies), strict=True
        ):
            for our_row, their_row in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(our_row, their_row, atol=1e-5)
        assert scorer.tally == expected.tally
        metrics = update(alone.policy, alone.optimizer, batch, config, num_prompts).metrics
        assert_equal_numbers(together.update(batch, config, num_prompts).metrics, metrics)


def test_a_prompt_that_does_not_fit_is_refused_and_the_ranks_go_on(
    make_config: MakeConfig, ranks: Ranks
) -> None:
    config = make_config()
    alone = make_bench(config)
    together = ranked(alone, config, ranks)
    prompt = np.zeros(3, dtype=np.int64)
    scorer = together.scorer(1.0)
    with pytest.raises(ScoringError, match="does not fit the model's"):
        scorer.score([prompt] * 5, [[np.zeros(10**6, dtype=np.int64)]] * 5)
    assert len(scorer.score([prompt], [[prompt]])[0][0]) == 3


def test_sums_too_large_for_memory_leave_a_rank_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every rank finds it at the same place; only rank 0 has to say so."""
    calls = iter([("begin", {}), ("break_down", {}), ("save", {}), ("close", None)])
    done: list[str] = []

    def too_large() -> None:
        done.append("break_down")
        raise GradientMemoryError("2 buckets of 2 terms need 9 GB")

    learner = SimpleNamespace(break_down=too_large, save=lambda: done.append("save"))
    monkeypatch.setattr(worker, "begun", lambda ranks: learner)
    worker._until_closed(SimpleNamespace(receive=lambda: next(calls)))  # type: ignore[arg-type]
    assert done == ["break_down", "save"]


def test_ranks_that_may_wait_for_a_failed_rank_0_are_not_called_again(
    make_config: MakeConfig,
) -> None:
    """The monitor goes on after a measurement that failed; the update after it must not hang."""
    config = make_config()
    bench = make_bench(config)
    sent: list[str] = []
    ranks = SimpleNamespace(
        send=lambda name, arguments: sent.append(name), failing=contextlib.nullcontext
    )
    learner = RankedLearner(bench.policy, config, ranks)  # type: ignore[arg-type]

    class RunOut:
        @property
        def policy(self) -> None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    learner._own = RunOut()  # type: ignore[assignment]
    rollouts = bench.collect()
    with pytest.raises(torch.OutOfMemoryError):
        learner.gradients(rollouts, config, bench.chat)
    with pytest.raises(RankError, match="break_down failed on rank 0 with OutOfMemoryError"):
        learner.annotate(bench.batch(), config)
    assert sent == ["break_down"]


def test_bfloat16_keeps_weights_in_float32(
    make_config: MakeConfig, ranks: Ranks, tmp_path: Path
) -> None:
    """An update far below what bfloat16 can add still adds up, as with the masters of one."""
    config = make_config("model.dtype=bfloat16", "optim.lr=1e-5")
    alone = make_bench(config)
    start = [master.clone() for master in alone.optimizer.masters()]
    together = ranked(alone, config, ranks)
    for step in (1, 2, 3):
        batch = alone.batch(step)
        update(alone.policy, alone.optimizer, batch, config, step)
        together.update(batch, config, step)
    assert {p.dtype for p in together.policy.model.parameters()} == {torch.bfloat16}
    ours = saved(together, config, tmp_path)
    theirs = alone.optimizer.state_tensors()
    assert ours.keys() == theirs.keys()
    pairs = [(key, before) for key, before in zip(masters_of(theirs), start, strict=True)]
    gap = torch.cat([(ours[key] - theirs[key]).flatten() for key, _ in pairs]).norm()
    moved = torch.cat([(theirs[key] - before).flatten() for key, before in pairs]).norm()
    assert float(gap) < 0.1 * float(moved)
