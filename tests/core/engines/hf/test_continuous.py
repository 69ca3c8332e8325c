"""Continuous batching: a sample is that of `generate`, whenever its request comes and goes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from forwarded import counted_tokens
from generating import generate
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.engines.base import Engine, Sample, SamplingParams
from echoscope.core.engines.hf import continuous
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.hf.sampling import PolicyNumericsError
from echoscope.store.records import FinishReason, IntArray

VOCAB_SIZE = 61
PLAIN = SamplingParams(max_new_tokens=12, stop_token_ids=(0, 1, 2, 3))
KINDS = (
    PLAIN,
    SamplingParams(max_new_tokens=5, top_k=4, records_support=True),
    SamplingParams(max_new_tokens=9, temperature=0.5, top_p=0.7, records_support=True),
    SamplingParams(max_new_tokens=30, temperature=0),
)


def make_model(seed: int = 0) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=256,
        )
    )
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return make_model()


def make_engine(model: Qwen2ForCausalLM, **settings: Any) -> HfEngine:
    return HfEngine(model, config=HfEngineConfig(**settings))


@dataclass
class Talk:
    """A conversation of several turns; its prompts continue each other."""

    prompt: IntArray
    params: SamplingParams
    seed: int
    num_turns: int = 3
    samples: list[Sample] = field(default_factory=list)

    def answer(self, sample: Sample) -> bool:
        """Take in a sample; whether there is another turn."""
        self.samples.append(sample)
        more = np.array([7 + self.seed % 5, 9], np.int32)
        self.prompt = np.concatenate([self.prompt, sample.tokens, more])
        return len(self.samples) < self.num_turns


def talks(params: SamplingParams, number: int = 12) -> list[Talk]:
    """Conversations; three siblings each time begin alike."""
    rng = np.random.default_rng(3)
    starts = [rng.integers(0, VOCAB_SIZE, 4 + 7 * i).astype(np.int32) for i in range(number)]
    return [
        Talk(prompt=starts[i // 3], params=params, seed=i, num_turns=1 + i % 4)
        for i in range(number)
    ]


def by_generate(model: Qwen2ForCausalLM, those: list[Talk]) -> list[Talk]:
    """Each conversation on its own, call by call, without any cache."""
    engine = make_engine(model, reuse_cache=False)
    for talk in those:
        while True:
            seed = talk.seed * 100 + len(talk.samples)
            if not talk.answer(generate(engine, [talk.prompt], talk.params, seeds=[seed])[0]):
                break
    return those


def by_stream(engine: Engine, those: list[Talk], *, delay: int) -> list[Talk]:
    """All at once: they join two at a time, and a next turn comes `delay` advances later."""
    arrivals = deque((2 * (i // 2), i) for i in range(len(those)))
    now = 0
    while arrivals or engine.num_pending:
        for _ in range(len(arrivals)):
            due, key = arrivals.popleft()
            if due > now:
                arrivals.append((due, key))
                continue
            seed = those[key].seed * 100 + len(those[key].samples)
            engine.submit(key, those[key].prompt, those[key].params, seed=seed)
        for key, sample in engine.advance(max_wait_s=0):
            if those[key].answer(sample):
                arrivals.append((now + delay + key % 3, key))
        now += 1
    return those


def assert_same(streamed: list[Talk], expected: list[Talk]) -> None:
    for left, right in zip(streamed, expected, strict=True):
        assert len(left.samples) == left.num_turns
        for sample, other in zip(left.samples, right.samples, strict=True):
            assert sample.tokens.tolist() == other.tokens.tolist()
            assert sample.finish_reason is other.finish_reason
            np.testing.assert_allclose(sample.logprobs, other.logprobs, atol=1e-5)
            np.testing.assert_allclose(sample.entropies, other.entropies, atol=1e-4)
            assert (sample.support is None) == (other.support is None)
            if sample.support is not None:
                assert sample.support.sizes.tolist() == other.support.sizes.tolist()
                assert sample.support.tokens.tolist() == other.support.tokens.tolist()


@pytest.mark.long
@pytest.mark.parametrize("params", KINDS)
@pytest.mark.parametrize(
    ("reuse", "max_rows", "every"), [(True, 256, 1), (True, 4, 8), (True, 1, 1), (False, 4, 1)]
)
def test_requests_that_come_and_go_have_the_samples_of_generate(
    model: Qwen2ForCausalLM,
    params: SamplingParams,
    reuse: bool,
    max_rows: int,
    every: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(continuous, "CHECK_EVERY", {"cpu": every})
    engine = make_engine(model, reuse_cache=reuse, max_batch_rows=max_rows)
    assert_same(by_stream(engine, talks(params), delay=3), by_generate(model, talks(params)))
    assert engine.num_pending == 0


def test_requests_under_way_are_drawn_alike(model: Qwen2ForCausalLM) -> None:
    engine = make_engine(model)
    engine.submit(1, np.arange(9), PLAIN, seed=0)
    engine.submit(2, np.arange(9), SamplingParams(max_new_tokens=3), seed=0)
    with pytest.raises(ValueError, match="request 3 is sampled in another way"):
        engine.submit(3, np.arange(9), SamplingParams(max_new_tokens=3, top_k=4), seed=0)
    engine.cancel()
    engine.submit(3, np.arange(9), SamplingParams(max_new_tokens=3, top_k=4), seed=0)


def test_a_next_turn_forwards_its_new_tokens_only(model: Qwen2ForCausalLM) -> None:
    engine = make_engine(model)
    with counted_tokens() as counts:
        by_stream(engine, [Talk(np.arange(40), PLAIN, seed=5)], delay=4)
    # Each further turn: two new tokens, and the last sampled one, which was not forwarded.
    assert counts.prefilled == 40 + 2 * (2 + 1)


def test_siblings_that_come_together_are_forwarded_once(model: Qwen2ForCausalLM) -> None:
    engine = make_engine(model)
    those = [Talk(np.arange(30), PLAIN, seed=seed, num_turns=1) for seed in range(4)]
    for key, talk in enumerate(those):
        engine.submit(key, talk.prompt, talk.params, seed=talk.seed)
    with counted_tokens() as counts:
        engine.advance(max_wait_s=0)
    assert counts.prefilled == 30


def test_a_watch_ends_each_reply_where_it_says(model: Qwen2ForCausalLM) -> None:
    class Third:
        left = 3

        def ends(self, token: int) -> FinishReason | None:
            self.left -= 1
            return None if self.left else FinishReason.ABORT

    engine = make_engine(model)
    engine.submit(1, np.arange(9), SamplingParams(max_new_tokens=8, watch=Third), seed=0)
    engine.submit(2, np.arange(9), SamplingParams(max_new_tokens=2, watch=Third), seed=0)
    samples: dict[int, Sample] = {}
    while engine.num_pending:
        samples |= dict(engine.advance(max_wait_s=0))
    assert len(samples[1].tokens) == 3
    assert samples[1].finish_reason is FinishReason.ABORT
    assert samples[2].finish_reason is FinishReason.LENGTH
    assert samples[2].tokens.tolist() == samples[1].tokens[:2].tolist()


def test_memory_that_runs_out_costs_time_and_no_sample(
    model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    engine = HfEngine(model, config=HfEngineConfig(), report=told.append)
    calls = 0
    plain = continuous.sample_tokens

    def run_out(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 20:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return plain(*args)

    monkeypatch.setattr(continuous, "sample_tokens", run_out)
    streamed = by_stream(engine, talks(PLAIN), delay=1)
    monkeypatch.undo()
    assert_same(streamed, by_generate(model, talks(PLAIN)))
    assert len(told) == 1
    assert "rows at once ran out of memory" in told[0]


def test_a_single_reply_without_memory_is_an_error_with_the_way_out(
    model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_out(*args: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    engine = make_engine(model)
    engine.submit(1, np.arange(9), PLAIN, seed=0)
    monkeypatch.setattr(continuous, "sample_tokens", run_out)
    with pytest.raises(torch.OutOfMemoryError, match="a single reply: lower context"):
        engine.advance(max_wait_s=0)
    assert engine.num_pending == 0


def test_broken_weights_give_an_error_and_leave_nothing_behind() -> None:
    model = make_model()
    engine = make_engine(model)
    engine.submit(1, np.arange(9), PLAIN, seed=0)
    with torch.no_grad():
        model.lm_head.weight.data.fill_(torch.nan)
    with pytest.raises(PolicyNumericsError, match="response token 0"):
        engine.advance(max_wait_s=0)
    assert engine.num_pending == 0


def test_weights_do_not_change_under_a_response() -> None:
    model = make_model()
    engine = make_engine(model)
    engine.submit(1, np.arange(9), PLAIN, seed=0)
    with pytest.raises(RuntimeError, match="sync_weights was called while 1 requests are pending"):
        engine.sync_weights(model)
    with pytest.raises(RuntimeError, match="generate was called while 1"):
        generate(engine, [np.arange(3)], PLAIN, seeds=[0])
    engine.advance(max_wait_s=0)
    with torch.no_grad():
        model.lm_head.weight.add_(1)
    with pytest.raises(RuntimeError, match="a change of the weights was called while 1"):
        engine.advance(max_wait_s=0)


def test_requests_are_checked_when_they_come(model: Qwen2ForCausalLM) -> None:
    engine = make_engine(model)
    with pytest.raises(ValueError, match="vocabulary"):
        engine.submit(1, np.array([VOCAB_SIZE]), PLAIN, seed=0)
    engine.submit(1, np.array([5]), PLAIN, seed=0)
    with pytest.raises(ValueError, match="request 1 is pending already"):
        engine.submit(1, np.array([5]), PLAIN, seed=0)
    engine.cancel()
    assert (engine.num_pending, engine.advance(max_wait_s=0)) == (0, [])
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        engine.submit(1, np.array([5]), PLAIN, seed=0)
