"""Memory that runs out once: the work is made again in smaller parts, and somebody is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bench import Bench, make_bench
from generating import generate

from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf import continuous
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.update.update import annotate, update

MakeConfig = Callable[..., RunConfig]


def fail_at(call: int, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, but its n-th call, from 1, runs out of memory."""
    calls = 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return function(*args, **kwargs)

    return wrapped


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("call", [1, 2])
def test_an_update_is_made_again_and_moves_the_weights_as_it_would_have(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, dtype: str, call: int
) -> None:
    config = make_config(f"model.dtype={dtype}", "optim.max_microbatch_tokens=200", "optim.lr=1e-4")
    plain, short = make_bench(config), make_bench(config)
    batch = plain.batch()
    expected = update(plain.policy, plain.optimizer, batch, config, step=1)
    monkeypatch.setattr(short.policy, "outputs", fail_at(call, short.policy.outputs))
    result = update(short.policy, short.optimizer, batch, config, step=1)
    assert result.metrics["optim/num_oom_retries"] == 1
    assert expected.metrics["optim/num_oom_retries"] == 0
    assert short.policy.microbatch_tokens(config.optim) == 50
    for key in ("optim/idle_token_frac", "policy/advantage_mean", "optim/num_updates"):
        assert result.metrics[key] == pytest.approx(expected.metrics[key], nan_ok=True), key
    assert_same_gradient_norm(result.metrics, expected.metrics, dtype)


def assert_same_gradient_norm(
    again: dict[str, float], expected: dict[str, float], dtype: str
) -> None:
    """A gradient that counted a failed part twice would be longer."""
    allowed = 1e-4 if dtype == "float32" else 5e-2
    assert again["optim/grad_norm"] == pytest.approx(expected["optim/grad_norm"], rel=allowed)


def test_annotating_is_made_again(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = make_bench(make_config("loss.kl_coef=0.1"))
    batch = bench.batch()
    expected, _ = annotate(bench.policy, batch, bench.config)
    wrapped = fail_at(1, bench.policy.reference_logprobs)
    monkeypatch.setattr(bench.policy, "reference_logprobs", wrapped)
    again, _ = annotate(bench.policy, batch, bench.config)
    torch.testing.assert_close(again.ref_logprobs, expected.ref_logprobs)
    assert bench.policy.take_num_shrunk() == 1
    assert bench.policy.take_num_shrunk() == 0


def test_memory_that_runs_out_again_is_not_hidden(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(make_config())
    batch = bench.batch()

    def fail(*args: object, **kwargs: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(bench.policy, "outputs", fail)
    with pytest.raises(torch.OutOfMemoryError, match=r"even with 256 tokens.*model\.lora"):
        update(bench.policy, bench.optimizer, batch, bench.config, step=1)


def test_sampling_goes_on_with_fewer_rows_and_the_same_samples(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = make_bench(make_config())
    expected = sampled(bench, HfEngine(bench.policy.model, config=bench.config.engine))
    told: list[str] = []
    engine = HfEngine(bench.policy.model, config=bench.config.engine, report=told.append)
    monkeypatch.setattr(continuous, "sample_tokens", fail_at(1, continuous.sample_tokens))
    again = sampled(bench, engine)
    assert engine.max_rows == 2
    assert [s.tokens.tolist() for s in again] == [s.tokens.tolist() for s in expected]
    assert told == [
        "sampling 8 rows at once ran out of memory; from now on at most 2 are: "
        "engine.max_batch_rows=2 avoids this"
    ]


def sampled(bench: Bench, engine: HfEngine) -> list[Any]:
    prompts = [np.array([5, 6, 7 + row], np.int32) for row in range(8)]
    return generate(engine, prompts, SamplingParams(max_new_tokens=4), seeds=range(8))
