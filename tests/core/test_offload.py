"""Moments and masters in host memory: the same updates as beside the weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bench import make_bench

from echoscope.core import optim
from echoscope.core.config.settings import RunConfig
from echoscope.core.memory import estimate_memory
from echoscope.core.optim import Optimizer
from echoscope.core.update.update import update

MakeConfig = Callable[..., RunConfig]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_offloaded_updates_move_the_weights_alike(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    """Here host memory is all there is: every weight is taken to lie outside of it."""
    monkeypatch.setattr(optim, "needs_offload", lambda parameter: True)
    settings = (f"model.dtype={dtype}", "optim.lr=1e-3", "optim.minibatches=2")
    benches = [
        make_bench(make_config(*settings, f"optim.offload={flag}")) for flag in ("false", "true")
    ]
    batch = benches[0].batch()
    for bench in benches:
        for step in (1, 2):
            update(bench.policy, bench.optimizer, batch, bench.config, step)
    plain, offloaded = (bench.weights() for bench in benches)
    for name, weight in plain.items():
        assert torch.equal(offloaded[name], weight), name
    held = benches[1].optimizer.state_tensors()
    assert sum(key.endswith(".master") for key in held) == len(plain)
    again = Optimizer(benches[1].policy.parameter_groups(), benches[1].config.optim)
    again.load_state_tensors(held)
    assert all(torch.equal(value, held[key]) for key, value in again.state_tensors().items())


def test_the_estimate_leaves_offloaded_moments_out(make_config: MakeConfig) -> None:
    needs = [
        estimate_memory(make_config(f"optim.offload={flag}"), "cuda") for flag in ("false", "true")
    ]
    num_weights = needs[0].weights // 2  # bfloat16
    assert needs[0].optimizer == 12 * num_weights
    assert needs[1].optimizer == 0
    assert needs[1].gradients == 2 * num_weights
    on_cpu = [
        estimate_memory(make_config(f"optim.offload={flag}"), "cpu") for flag in ("false", "true")
    ]
    assert on_cpu[0] == on_cpu[1]
