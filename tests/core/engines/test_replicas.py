"""Several engines behind one: who samples what, and nothing is lost with a replica."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from generating import generate
from safetensors.torch import load_file
from small_qwen import make_model
from waiting import wait_until

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.engines import replicas as replicas_module
from echoscope.core.engines.base import Engine, EngineError, Sample, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.replicas import BLOCK_TOKENS, Replicas, Router
from echoscope.core.engines.vllm.weights import WeightFiles
from echoscope.store.records import IntArray

LONG = SamplingParams(max_new_tokens=20)
PROMPTS = [np.arange(1, 4 + i, dtype=np.int32) for i in range(12)]
MODELS = [make_model(seed, tied=True) for seed in range(2)]


@dataclass(frozen=True)
class Policy:
    model: Any = MODELS[0]
    version: int = 0


class Mortal(HfEngine):
    """A built-in engine that dies after so many calls of `advance`; `dies_at` can be set later."""

    dies_at: int | None = None
    num_calls = 0
    dies_on_sync = False
    is_closed = False

    def advance(self, *, max_wait_s: float) -> list[tuple[int, Sample]]:
        self.num_calls += 1
        if self.dies_at is not None and self.num_calls > self.dies_at:
            raise EngineError("killed")
        return super().advance(max_wait_s=max_wait_s)

    def sync_weights(self, policy: Any) -> None:
        if self.dies_on_sync:
            raise EngineError("takes no weights")
        super().sync_weights(policy)

    def close(self) -> None:
        self.is_closed = True
        super().close()


@dataclass
class Fleet:
    """Replicas that the test can kill, the newest of each index at its place."""

    at: dict[int, Mortal] = field(default_factory=dict)
    num_starts: int = 0
    num_made: int = 0
    may_start: threading.Event = field(default_factory=threading.Event)
    messages: list[str] = field(default_factory=list)

    def start(self, index: int) -> Engine:
        self.num_starts += 1
        assert self.may_start.wait(30)
        self.at[index] = Mortal(MODELS[0], config=HfEngineConfig())
        self.num_made += 1
        return self.at[index]


@pytest.fixture
def fleet() -> Fleet:
    held = Fleet()
    held.may_start.set()
    return held


@pytest.fixture
def make(fleet: Fleet) -> Iterator[Callable[..., Replicas]]:
    made: list[Replicas] = []

    def build(number: int, **settings: Any) -> Replicas:
        made.append(
            Replicas(Policy(), fleet.start, number, report=fleet.messages.append, **settings)
        )
        return made[-1]

    yield build
    fleet.may_start.set()
    for engine in made:
        engine.close()


def tokens(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def builtin(weights: int = 0) -> list[list[int]]:
    engine = HfEngine(MODELS[weights], config=HfEngineConfig())
    return tokens(generate(engine, PROMPTS, LONG, seeds=range(12)))


def test_a_lost_replica_costs_no_sample(make: Callable[..., Replicas], fleet: Fleet) -> None:
    engine = make(3)
    fleet.at[1].dies_at = 5
    dead = fleet.at[1]
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin()
    assert fleet.messages[0] == (
        "replica 1 of the engine was lost (killed); it is started again, and its 4 requests go to "
        "the others"
    )
    assert dead.is_closed
    assert engine.take_metrics()["engine/num_lost"] == 1
    assert engine.take_metrics() == {}


def test_the_last_replica_comes_back_within_the_same_call(
    make: Callable[..., Replicas], fleet: Fleet
) -> None:
    engine = make(1)
    fleet.at[0].dies_at = 5
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin()
    assert fleet.messages[-1] == "replica 0 of the engine is back"


def test_a_replica_that_is_back_samples_from_the_newest_weights(
    make: Callable[..., Replicas], fleet: Fleet
) -> None:
    engine = make(2)
    fleet.at[0].dies_at = 0
    fleet.may_start.clear()
    generate(engine, PROMPTS, LONG, seeds=range(12))
    engine.sync_weights(Policy(MODELS[1], 7))
    fleet.may_start.set()
    samples = generate(engine, PROMPTS * 4, LONG, seeds=[*range(12)] * 4)
    assert tokens(samples) == builtin(1) * 4
    assert {sample.policy_version for sample in samples} == {7}
    assert "replica 0 of the engine is back" in fleet.messages
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin(1)
    assert fleet.at[0].num_calls, "it samples again"


def test_with_weights_that_move_a_replica_joins_at_the_next_sync(
    make: Callable[..., Replicas], fleet: Fleet
) -> None:
    engine = make(2, weights_rest=False)
    fleet.at[0].dies_at = 0
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin()
    wait_until(lambda: fleet.num_made == 3)
    back = fleet.at[0]
    generate(engine, PROMPTS, LONG, seeds=range(12))
    assert back.num_calls == 0
    engine.sync_weights(Policy(MODELS[1], 1))
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin(1)
    assert back.num_calls > 0
    fleet.at[0].dies_at = fleet.at[1].dies_at = 0
    with pytest.raises(EngineError, match="all replicas of the engine are lost; the last: killed"):
        generate(engine, PROMPTS, LONG, seeds=range(12))


def test_a_replica_that_takes_no_weights_is_replaced(
    make: Callable[..., Replicas], fleet: Fleet
) -> None:
    engine = make(2)
    fleet.at[1].dies_on_sync = True
    engine.sync_weights(Policy(MODELS[1], 1))
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin(1)
    assert "(takes no weights); it is started again" in fleet.messages[0]


def test_a_replica_that_dies_again_and_again_is_given_up(
    make: Callable[..., Replicas], fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(1)
    monkeypatch.setattr(replicas_module, "RESTART_PAUSES_S", [0.0] * 4)
    monkeypatch.setattr(Mortal, "dies_at", 0)
    with pytest.raises(EngineError, match="all replicas of the engine are lost"):
        generate(engine, PROMPTS, LONG, seeds=range(12))
    assert fleet.num_starts == replicas_module.MAX_LOSSES
    assert "it is not started again" not in " ".join(fleet.messages[:-1])


def test_a_replica_with_other_weights_is_lost(make: Callable[..., Replicas], fleet: Fleet) -> None:
    engine = make(2)
    fleet.at[1].sync_weights(Policy(MODELS[1], 9))
    assert tokens(generate(engine, PROMPTS, LONG, seeds=range(12))) == builtin()
    assert "sampled from version 9 of the policy, but version 0 was sent" in fleet.messages[0]


def test_what_a_replica_was_sent_when_it_started_again_is_not_sent_to_all() -> None:
    """It may be older than the weights that are sent."""
    model = make_model(0, tied=True)
    files = WeightFiles(model)
    sent: list[dict[str, Any]] = []

    class Reads(HfEngine):
        def sync_weights(self, policy: Any) -> None:
            with files.reading(policy.model) as path:
                sent.append(load_file(path / "model.safetensors"))
            super().sync_weights(policy)

    def start(index: int) -> Engine:
        engine = Reads(model, config=HfEngineConfig())
        engine.sync_weights(Policy(model, 0))
        return engine

    engine = Replicas(Policy(model), start, 2, forget_weights=files.are_loaded)
    start(0)  # in the middle of training, say
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    engine.sync_weights(Policy(model, 1))
    for weights in sent[-2:]:
        assert torch.equal(weights["model.norm.weight"], model.model.norm.weight)
    engine.close()
    files.remove()


def test_what_cannot_start_is_raised_and_the_others_are_closed() -> None:
    started: list[Mortal] = []

    def start(index: int) -> Engine:
        if index == 1:
            raise EngineError("no room")
        started.append(Mortal(MODELS[0], config=HfEngineConfig()))
        return started[-1]

    with pytest.raises(EngineError, match="no room"):
        Replicas(Policy(), start, 2)
    assert started[0].is_closed


class TestRouter:
    """In blocks of 64 tokens."""

    @staticmethod
    def prompt(*blocks: int) -> IntArray:
        return np.repeat(np.array(blocks, dtype=np.int32), BLOCK_TOKENS)

    def test_siblings_go_where_their_beginning_is(self) -> None:
        router = Router()
        assert router.choose(self.prompt(1, 2), 100, {0: 50, 1: 0}) == 1
        assert router.choose(self.prompt(1, 3), 100, {0: 50, 1: 100}) == 1
        assert router.choose(self.prompt(4), 100, {0: 50, 1: 100}) == 0

    def test_the_longest_beginning_counts(self) -> None:
        router = Router()
        router.choose(self.prompt(1), 10, {0: 0, 1: 5})
        router.choose(self.prompt(1, 2), 10, {1: 5})
        assert router.choose(self.prompt(1, 2, 3), 10, {0: 0, 1: 5}) == 1

    def test_a_replica_far_ahead_gets_no_more(self) -> None:
        router = Router()
        router.choose(self.prompt(1), 10, {0: 0, 1: 5})
        ahead = replicas_module.AHEAD_REQUESTS * 10
        assert router.choose(self.prompt(1), 10, {0: ahead, 1: 0}) == 0
        assert router.choose(self.prompt(1), 10, {0: ahead + 1, 1: 0}) == 1

    def test_a_lost_replica_has_no_beginnings(self) -> None:
        router = Router()
        router.choose(self.prompt(1), 10, {0: 0, 1: 5})
        router.forget(0)
        assert router.choose(self.prompt(1), 10, {0: 9, 1: 5}) == 1

    def test_what_is_remembered_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(replicas_module, "MAX_BEGINNINGS", 3)
        router = Router()
        for block in range(10):
            router.choose(self.prompt(block), 1, {0: 0})
        assert len(router._replica_of) == 3
