"""The critic's own warm-up, passes, schedule and clip, against plain loops over its weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from bench import Bench, make_bench
from recorded import assert_same_recording, metric

from echoscope.core.config.loading import ConfigError
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import resume, start
from echoscope.core.run.observers import SilentEvents
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.update import update

MakeConfig = Callable[..., RunConfig]
OWN_MODEL = ("critic.kind=model", "advantage.kind=gae", "critic.lr=1e-3")
HEAD = ("critic.kind=head", "advantage.kind=gae")


def moved(bench: Bench, before: dict[str, torch.Tensor]) -> set[str]:
    """`model` and `critic`, where any weight differs."""
    after = bench.weights()
    return {name.split(".")[0] for name, weight in before.items() if not weight.equal(after[name])}


def naive_critic(bench: Bench, batch: TokenBatch, num_passes: int, clip: float) -> dict[str, float]:
    """AdamW on the mean over tokens of the larger squared error, in plain loops over tokens."""
    config = bench.config
    twin = copy.deepcopy(bench.policy)
    assert twin.critic is not None
    parts = [list(twin.critic.trunk.parameters()), list(twin.critic.head.parameters())]
    optimizer = torch.optim.AdamW(
        [parameter for part in parts for parameter in part],
        lr=config.critic.lr,
        betas=config.optim.betas,
        weight_decay=0.0,
    )
    assert batch.returns is not None
    assert batch.values is not None
    for _ in range(num_passes):
        values, loss = twin.values(batch), torch.zeros(())
        for b, t in batch.loss_mask.nonzero().tolist():
            error = (values[b, t] - batch.returns[b, t]) ** 2
            near = (values[b, t] - batch.values[b, t]).clamp(
                -config.loss.value_clip, config.loss.value_clip
            ) + batch.values[b, t]
            error = torch.maximum(error, (near - batch.returns[b, t]) ** 2)
            loss = loss + 0.5 * config.loss.value_coef * error / batch.num_loss_tokens
        optimizer.zero_grad()
        loss.backward()
        for part in parts:
            if not torch.nn.utils.clip_grad_norm_(part, clip):  # the head begins at zero
                for parameter in part:
                    parameter.grad = None
        optimizer.step()
    return {f"critic.{name}": weight.detach() for name, weight in twin.critic.named_parameters()}


@pytest.mark.parametrize(
    ("settings", "step", "num_passes", "clip", "moves"),
    [
        (("optim.epochs=3",), 1, 3, 1.0, {"model", "critic"}),
        (("critic.warmup_steps=2",), 1, 1, 1.0, {"critic"}),
        (("critic.warmup_steps=2", "optim.epochs=2"), 2, 2, 1.0, {"critic"}),
        (("critic.warmup_steps=2",), 3, 1, 1.0, {"model", "critic"}),
        (("optim.grad_clip=0.01",), 1, 1, 0.01, {"model", "critic"}),
    ],
)
def test_a_critic_of_its_own_moves_as_in_plain_loops(
    make_config: MakeConfig,
    settings: tuple[str, ...],
    step: int,
    num_passes: int,
    clip: float,
    moves: set[str],
) -> None:
    bench = make_bench(make_config(*OWN_MODEL, *settings))
    batch = bench.batch()
    expected = naive_critic(bench, batch, num_passes, clip)
    before = bench.weights()
    result = update(bench.policy, bench.optimizer, batch, bench.config, step)
    assert moved(bench, before) == moves
    after = bench.weights()
    for name, weight in expected.items():
        torch.testing.assert_close(after[name], weight, atol=2e-5, rtol=1e-4)
    is_warmup = "model" not in moves
    assert (result.metrics["optim/num_updates"] == 0) == is_warmup
    assert math.isnan(result.metrics["optim/grad_norm"]) == is_warmup
    assert (result.metrics["optim/lr"] == 0) == is_warmup
    assert result.metrics["optim/num_without_gradient"] == 0
    assert result.metrics["policy/update_entropy"] > 0  # measured all the same
    assert result.metrics["loss/value"] > 0
    assert result.metrics["critic/value_mean"] == pytest.approx(
        float(batch.values[batch.loss_mask].mean()), abs=1e-5
    )


@pytest.mark.long
@pytest.mark.parametrize("critic", [HEAD, OWN_MODEL], ids=["head", "model"])
@pytest.mark.parametrize("packing", ["true", "false"])
def test_further_passes_count_as_forwarded_tokens(
    make_config: MakeConfig, critic: tuple[str, ...], packing: str
) -> None:
    """Three passes over the same rows forward three times the tokens."""
    forwarded, shares = [], []
    for epochs in (1, 3):
        bench = make_bench(
            make_config(*critic, f"optim.epochs={epochs}", f"model.packing={packing}")
        )
        batch = bench.batch()
        result = update(bench.policy, bench.optimizer, batch, bench.config, step=1)
        assert result.metrics["optim/idle_token_frac"] == 0
        forwarded.append(result.metrics["optim/num_forwarded_tokens"])
        shares.append(result.metrics["optim/forwarded_frac"])
    assert forwarded[1] == 3 * forwarded[0] > 0
    assert shares[1] == pytest.approx(shares[0])


def test_in_the_warm_up_of_a_head_the_trunk_rests(make_config: MakeConfig) -> None:
    """The value loss would train the trunk as well, and with it the policy."""
    bench = make_bench(make_config(*HEAD, "critic.warmup_steps=1", "optim.epochs=2"))
    before, batch = bench.weights(), bench.batch()
    update(bench.policy, bench.optimizer, batch, bench.config, step=1)
    assert moved(bench, before) == {"critic"}
    assert bench.policy.version == 0
    update(bench.policy, bench.optimizer, bench.batch(2), bench.config, step=2)
    assert moved(bench, before) == {"model", "critic"}


@pytest.mark.parametrize(
    ("settings", "factors"),
    [
        (("optim.schedule=linear",), [1, 0.75, 0.5, 0.25]),
        (("optim.warmup_steps=3",), [1 / 4, 2 / 4, 3 / 4, 1]),
    ],
)
def test_the_critic_follows_the_policys_schedule(
    make_config: MakeConfig, settings: tuple[str, ...], factors: list[float]
) -> None:
    bench = make_bench(make_config(*HEAD, "critic.lr=0.01", *settings))
    batch = bench.batch()
    lrs = [
        update(bench.policy, bench.optimizer, batch, bench.config, step).metrics["optim/critic_lr"]
        for step in (1, 2, 3, 4)
    ]
    assert lrs == pytest.approx([0.01 * factor for factor in factors])


@pytest.mark.long
def test_a_resumed_warm_up_repeats_itself(make_config: MakeConfig, tmp_path: Path) -> None:
    quick = ("diagnostics.enabled=false", "envs.eval=[]", "checkpoint.every=1", "checkpoint.keep=9")
    own = (*OWN_MODEL, "critic.warmup_steps=2", "optim.epochs=2", "optim.schedule=cosine")
    config = make_config(*quick, *own, "steps=3")
    run = tmp_path / "run"
    assert start(config, run, SilentEvents()) == "finished"
    assert metric(run, "optim/num_updates") == {1: 0, 2: 0, 3: 2}
    first = tmp_path / "first"
    assert start(config.model_copy(update={"steps": 3}), first, SilentEvents()) == "finished"
    assert resume(first, SilentEvents(), checkpoint=1) == "finished"
    assert_same_recording(run, first)


def test_settings_that_cannot_be(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="warmup_steps is 4 and steps is 4, so the policy would"):
        make_config(*HEAD, "critic.warmup_steps=4")
