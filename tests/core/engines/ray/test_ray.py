"""Engines on a Ray of this machine: losses, and runs equal to the built-in engine's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from generating import generate
from recorded import recorded
from small_qwen import make_model
from transformers import PreTrainedModel

from echoscope.core.config.engine import HfEngineConfig, RayEngineConfig
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import Engine, EngineError, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.hf.sampling import PolicyNumericsError
from echoscope.core.engines.ray import engine as ray_engine
from echoscope.core.engines.ray.engine import RayEngine, RayFleet
from echoscope.core.engines.ray.session import connected
from echoscope.core.engines.replicas import Replicas
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

pytestmark = pytest.mark.ray

LONG = SamplingParams(max_new_tokens=400)
PROMPTS = [np.arange(1, 4 + i, dtype=np.int32) for i in range(8)]


@dataclass(frozen=True)
class Policy:
    model: PreTrainedModel
    version: int = 0


@pytest.fixture(scope="module", autouse=True)
def ray() -> Iterator[Any]:
    """One Ray for the tests of this file: starting it takes seconds."""
    ray, _ = connected(None, num_cpus=4)
    yield ray
    ray.shutdown()


def pids() -> list[int]:
    """The actors' processes on this machine."""
    out = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            title = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if title.startswith(b"ray::EngineActor"):
            out.append(int(process.name))
    return sorted(out)


def sampled(samples: list[Any]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def builtin(weights: int) -> list[list[int]]:
    engine = HfEngine(make_model(weights, tied=True), config=HfEngineConfig())
    return sampled(generate(engine, PROMPTS, LONG, seeds=range(8)))


@contextmanager
def engines(policy: Policy, messages: list[str] | None = None, **settings: Any) -> Iterator[Engine]:
    """Engines in actors, as a run has them."""
    config = RayEngineConfig(**settings)
    fleet = RayFleet(policy, config)
    try:
        engine = Replicas(
            policy,
            lambda index: RayEngine(policy, fleet),
            config.num_engines,
            report=(messages if messages is not None else []).append,
            forget_weights=fleet.forget_weights,
        )
        with closing(engine):
            yield engine
    finally:
        fleet.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_engine_is_replaced_and_costs_no_sample(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(ray_engine, "ANSWER_TIMEOUT_S", 3)
    messages: list[str] = []
    with engines(Policy(make_model(0, tied=True)), messages, num_engines=2) as engine:
        os.kill(pids()[0], number)
        assert sampled(generate(engine, PROMPTS, LONG, seeds=range(8))) == builtin(0)
        assert "was lost (its actor is gone" in messages[0]
        engine.sync_weights(Policy(make_model(1, tied=True), version=4))
        assert sampled(generate(engine, PROMPTS, LONG, seeds=range(8))) == builtin(1)


def test_engines_take_new_weights() -> None:
    with engines(Policy(make_model(0, tied=True)), num_engines=2) as engine:
        assert sampled(generate(engine, PROMPTS, LONG, seeds=range(8))) == builtin(0)
        engine.sync_weights(Policy(make_model(1, tied=True), version=4))
        samples = generate(engine, PROMPTS, LONG, seeds=range(8))
        assert sampled(samples) == builtin(1)
        assert {sample.policy_version for sample in samples} == {4}


def test_samples_say_what_truncation_left_in() -> None:
    params = SamplingParams(max_new_tokens=4, top_k=3, records_support=True)
    with engines(Policy(make_model(0, tied=True))) as engine:
        for sample in generate(engine, PROMPTS, params, seeds=range(8)):
            assert sample.support is not None
            assert sample.support.sizes.tolist() == [3] * 4
            left_in = sample.support.tokens.reshape(4, 3)
            assert (left_in == sample.tokens[:, None]).any(axis=1).all()


def test_an_error_of_the_engine_is_raised_as_its_own() -> None:
    broken = make_model(0, tied=True)
    with torch.no_grad():
        broken.model.norm.weight.fill_(float("nan"))
    with (
        engines(Policy(broken)) as engine,
        pytest.raises(PolicyNumericsError, match="NaN or infinity"),
    ):
        generate(engine, PROMPTS, LONG, seeds=range(8))


def test_engines_that_find_no_place_are_refused_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_engine, "START_TIMEOUT_S", 2)
    with (
        pytest.raises(EngineError, match=r"64 CPUs .* the cluster has 4 CPUs .* in all"),
        engines(Policy(make_model(0, tied=True)), cpus_per_engine=64),
    ):
        pass


def test_a_run_reserves_all_of_its_engines_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = Policy(make_model(0, tied=True))
    with engines(policy, num_engines=3), monkeypatch.context() as patched:
        patched.setattr(ray_engine, "START_TIMEOUT_S", 2)
        refused = pytest.raises(EngineError, match=r"2 engines .* were not ready")
        with refused, engines(policy, num_engines=2):
            pass
    with engines(policy, num_engines=2) as second:  # the places of the first run are free again
        assert sampled(generate(second, PROMPTS, LONG, seeds=range(8))) == builtin(0)


def test_a_run_with_one_engine_records_the_same_bits_as_the_builtin_engine(
    make_config: Callable[..., RunConfig], tmp_path: Path
) -> None:
    for name, settings in (("hf", ()), ("ray", ("engine.kind=ray",))):
        assert start(make_config(*settings), tmp_path / name, SilentEvents()) == "finished"
    tables = {name: recorded(tmp_path / name) for name in ("hf", "ray")}
    for table in tables["hf"]:
        assert tables["ray"][table] == tables["hf"][table], table


def test_a_cluster_that_is_not_there_is_named() -> None:
    script = (
        "from echoscope.core.engines.ray.session import connected\n"
        "connected('127.0.0.1:9', num_cpus=1)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = ended.stderr.strip().splitlines()[-1]
    assert "at '127.0.0.1:9' (engine.address or RAY_ADDRESS) no Ray cluster answers" in last
