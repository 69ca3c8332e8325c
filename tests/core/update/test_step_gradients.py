"""The decomposition of a sampled step, against the update that would train on it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from echoscope import open_run
from echoscope.core.config.settings import RunConfig
from echoscope.core.policy import Policy, build_policy
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.assemble import pack_kept, with_advantages
from echoscope.core.update.losses import Denominators, compute_loss
from echoscope.core.update.step_gradients import all_groups, break_down
from echoscope.core.update.update import annotate
from echoscope.diagnostics.config import SelectionConfig
from echoscope.diagnostics.measure.gradients import GradientReport
from echoscope.diagnostics.selection.filter import select_groups
from echoscope.store.records import RolloutBatch, Split


@pytest.fixture(scope="module")
def rollouts(
    make_config: Callable[..., RunConfig], tmp_path_factory: pytest.TempPathFactory
) -> RolloutBatch:
    path = tmp_path_factory.mktemp("runs") / "run"
    start(
        make_config("steps=1", "envs.train.0.groups=3", "eval.before=false"), path, SilentEvents()
    )
    drawn = [t for t in open_run(path).trajectories_of_step(1) if t.split is Split.TRAIN]
    return RolloutBatch(groups=tuple(tuple(drawn[k : k + 4]) for k in range(0, len(drawn), 4)))


@pytest.fixture
def chat(tiny_model: Path) -> ChatFormat:
    return ChatFormat(load_tokenizer(tiny_model))


def policy_of(config: RunConfig) -> Policy:
    return build_policy(config.model, config.critic, seed=0)


def step_gradients(
    policy: Policy, rollouts: RolloutBatch, config: RunConfig, chat: ChatFormat
) -> GradientReport:
    return break_down(policy, all_groups(rollouts, config, chat), config)


def norm_of_the_update(
    policy: Policy, rollouts: RolloutBatch, config: RunConfig, chat: ChatFormat
) -> float:
    """As `update` takes it, on all groups."""
    selection = select_groups(rollouts, SelectionConfig())
    batch, unpacked = pack_kept(rollouts, selection, config, chat)
    batch, _ = annotate(policy, batch, config)
    batch = with_advantages(batch, config, unpacked)
    outputs = policy.outputs(batch)
    compute_loss(
        outputs, batch, config.loss, Denominators.of(batch, config.norm_tokens)
    ).total.backward()
    parameters = [*policy.policy_parameters(), *policy.critic_parameters()]
    grads = [p.grad for p in parameters if p.grad is not None]
    return float(torch.stack([g.double().square().sum() for g in grads]).sum().sqrt())


@pytest.mark.parametrize(
    "overrides",
    [
        ["advantage.kind=grpo", "loss.entropy_coef=0.1", "loss.kl_coef=0.1"],
        ["advantage.kind=gae", "critic.kind=head"],
        ["advantage.kind=dr_grpo", "loss.aggregation=seq_mean_token_sum"],
        ["advantage.kind=rloo", "context.history_turns=1"],
        [
            "context.history_turns=1",
            "off_policy={old_logprobs: trainer, correction: tis, level: sequence, cap: 1}",
        ],
    ],
)
def test_the_total_is_the_gradient_of_the_update(rollouts, make_config, chat, overrides) -> None:
    config = make_config("optim.max_microbatch_tokens=200", *overrides)
    policy = policy_of(config)
    norms = step_gradients(policy, rollouts, config, chat)
    expected = norm_of_the_update(policy, rollouts, config, chat)
    assert norms.values["total/all/norm"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("call", [1, 3])
def test_memory_that_runs_out_once_is_retried_with_smaller_microbatches(
    rollouts, make_config, chat, monkeypatch, call
) -> None:
    """The third pass fails when sums of other groups are there already: they must not stay."""
    config = make_config("optim.max_microbatch_tokens=200")
    expected = step_gradients(policy_of(config), rollouts, config, chat)
    policy = policy_of(config)
    plain, calls = policy.outputs, []

    def fails_once(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(*args, **kwargs)

    monkeypatch.setattr(policy, "outputs", fails_once)
    norms = step_gradients(policy, rollouts, config, chat)
    assert policy.microbatch_tokens(config.optim) == 50
    assert policy.take_num_shrunk() == 1
    assert norms.metrics() == pytest.approx(expected.metrics(), nan_ok=True, rel=1e-3, abs=1e-6)


def test_memory_that_runs_out_twice_names_the_measurement(
    rollouts, make_config, chat, monkeypatch
) -> None:
    config = make_config()
    policy = policy_of(config)

    def fail(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(policy, "outputs", fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"ran out in the gradient breakdown.*256"):
        step_gradients(policy, rollouts, config, chat)


def test_rejected_groups_take_part(rollouts, make_config, chat) -> None:
    every = make_config()
    few = make_config("selection.strategy=top_k_abs", "selection.value=1")
    norms = step_gradients(policy_of(every), rollouts, every, chat)
    two = step_gradients(policy_of(few), rollouts, few, chat)
    assert norms.metrics() == pytest.approx(two.metrics(), nan_ok=True)


def test_what_is_stored(rollouts, make_config, chat) -> None:
    config = make_config()
    record = step_gradients(policy_of(config), rollouts, config, chat).record(7)
    assert (record.step, record.kind) == (7, "gradients")
    buckets = json.loads(record.payload)["buckets"]
    assert sorted(p for members in buckets.values() for p in members) == [0, 1, 2]


def test_no_groups_give_no_numbers(make_config, chat) -> None:
    config = make_config()
    norms = step_gradients(policy_of(config), RolloutBatch(groups=()), config, chat)
    assert math.isnan(norms.values["total/all/snr"])


def test_rows_without_advantage_cost_nothing_and_weigh_what_they_weigh(
    rollouts, make_config, chat
) -> None:
    """The first group's rewards are all equal: GRPO has nothing to say about it."""
    same = [
        replace(t, turns=tuple(replace(turn, reward=0.0, shaping={}) for turn in t.turns))
        for t in rollouts.groups[0]
    ]
    batch = RolloutBatch(groups=(tuple(same), *rollouts.groups[1:]))
    config = make_config()
    norms = step_gradients(policy_of(config), batch, config, chat)
    assert norms.values["policy/zero/norm"] == 0
    expected = norm_of_the_update(policy_of(config), batch, config, chat)
    assert norms.values["total/all/norm"] == pytest.approx(expected, rel=1e-4)
