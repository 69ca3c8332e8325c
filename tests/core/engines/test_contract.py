"""One contract for every sampling engine: `Engine` in core/engines/base.py.

A new engine joins `ENGINES` with a function that makes it from a model, and the log-prob error its
arithmetic is allowed.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from generating import generate
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config
from transformers import Qwen2ForCausalLM as Qwen2

from echoscope.core.config.engine import (
    HfEngineConfig,
    OpenAiEngineConfig,
    RayEngineConfig,
    VllmEngineConfig,
)
from echoscope.core.engines.base import Engine, Sample, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.ray.session import connected
from echoscope.core.engines.replicas import Replicas
from echoscope.store.records import FinishReason

VOCAB_SIZE = 97
Make = Callable[[PreTrainedModel], Engine]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCase:
    """How to make one engine, and how far its log-probs may be from a full forward pass."""

    make: Make
    tolerance: float
    has_entropies: bool = True
    is_slow_to_start: bool = False
    """One engine then serves all tests that only sample from a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The part of a policy that `sync_weights` reads."""

    model: PreTrainedModel
    version: int


def make_hf(model: PreTrainedModel) -> Engine:
    engine = HfEngine(model, config=HfEngineConfig())
    engine.sync_weights(Policy(model=model, version=3))
    return engine


def make_vllm(model: PreTrainedModel) -> Engine:
    """An engine over a vLLM server of the model's shape, one for all tests of this file."""
    from echoscope.core.engines.server.engine import ServerEngine
    from echoscope.core.engines.vllm.server import server_of

    config = VllmEngineConfig(kv_cache_gib=0.0625, max_batch_rows=32)
    if model.config.model_type not in SERVERS:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            SERVERS[model.config.model_type] = server_of(model, folder, config, positions=512)
    server = SERVERS[model.config.model_type]
    client = OpenAiEngineConfig(url=server.url, weights="vllm", max_batch_rows=32)
    return ServerEngine(model, config=client, policy_version=3, api_key=server.api_key)


SERVERS: dict[str, Any] = {}
"""Model type to its server."""


@pytest.fixture(scope="module", autouse=True)
def _servers_end() -> Iterator[None]:
    yield
    while SERVERS:
        SERVERS.popitem()[1].end()


@functools.cache
def held_ray() -> None:
    """One Ray for all of these tests: starting it takes seconds."""
    ray, _ = connected(None, num_cpus=2)
    atexit.register(ray.shutdown)


def make_ray(model: PreTrainedModel) -> Engine:
    from echoscope.core.engines.ray.engine import RayEngine, RayFleet

    held_ray()
    policy = Policy(model=model, version=3)
    fleet = RayFleet(policy, RayEngineConfig(num_engines=2))
    return Replicas(
        policy,
        lambda index: RayEngine(policy, fleet),
        2,
        forget_weights=fleet.forget_weights,
        after_close=fleet.close,  # else the next engine waits for the places of this one
    )


def make_replicas(model: PreTrainedModel) -> Engine:
    return Replicas(Policy(model=model, version=3), lambda index: make_hf(model), 3)


ENGINES = [
    pytest.param(EngineCase(make=make_replicas, tolerance=1e-5), id="replicas"),
    pytest.param(EngineCase(make=make_hf, tolerance=1e-5), id="hf"),
    pytest.param(
        EngineCase(make=make_vllm, tolerance=2e-5, has_entropies=False),
        id="vllm",
        marks=pytest.mark.vllm,
    ),
    pytest.param(
        EngineCase(make=make_ray, tolerance=1e-5, is_slow_to_start=True),
        id="ray",
        marks=pytest.mark.ray,
    ),
]


def sharpen(model: PreTrainedModel) -> PreTrainedModel:
    """Weights three times larger: a random model's distribution is else nearly uniform."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return model.eval()


def make_model(kind: str, seed: int = 0) -> PreTrainedModel:
    """hidden 64, 2 heads of 32, one or two KV heads, float32."""
    torch.manual_seed(seed)
    shape = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    if kind == "qwen2":
        return sharpen(Qwen2(Qwen2Config(num_key_value_heads=1, tie_word_embeddings=True, **shape)))
    return sharpen(LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **shape)))


@pytest.fixture(scope="module", params=["qwen2", "llama"])
def model(request: pytest.FixtureRequest) -> PreTrainedModel:
    return make_model(request.param)


@pytest.fixture(scope="module", params=ENGINES)
def case(request: pytest.FixtureRequest) -> EngineCase:
    return request.param


class Shared:
    """The engine that tests of one model share where engines start slowly."""

    def __init__(self) -> None:
        self.model: PreTrainedModel | None = None
        self.engine: Engine | None = None

    def of(self, case: EngineCase, model: PreTrainedModel) -> Engine:
        if self.engine is None or self.model is not model:
            self.close()
            self.model, self.engine = model, case.make(model)
        return self.engine

    def close(self) -> None:
        if self.engine is not None:
            self.engine.close()
        self.engine = None


@pytest.fixture(scope="module")
def shared(case: EngineCase) -> Iterator[Shared]:
    held = Shared()
    yield held
    held.close()


@pytest.fixture
def make(case: EngineCase, shared: Shared) -> Make:
    """Makes an engine for one test alone. Some kinds run once in a process."""
    shared.close()
    return case.make


@pytest.fixture
def engine(case: EngineCase, model: PreTrainedModel, shared: Shared) -> Iterator[Engine]:
    if case.is_slow_to_start:
        yield shared.of(case, model)
        return
    engine = case.make(model)
    yield engine
    engine.close()


def ragged_prompts(number: int = 7, seed: int = 0) -> list[np.ndarray]:
    """Lengths 1, 6, 11, ...: rows of one call differ in length."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, 1 + 5 * i).astype(np.int32) for i in range(number)]


def full_logits(model: PreTrainedModel, tokens: np.ndarray) -> torch.Tensor:
    """(L, V) without any cache."""
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))[None], use_cache=False).logits[0]


def expected(
    model: PreTrainedModel, prompt: np.ndarray, sample: Sample, temperature: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """Log-probs and entropies of a sample's tokens by a full forward pass."""
    tokens = np.concatenate([prompt, sample.tokens])
    logits = full_logits(model, tokens)[len(prompt) - 1 : -1] / temperature
    logprobs = torch.log_softmax(logits.double(), dim=-1)
    chosen = logprobs[
        torch.arange(len(sample.tokens)), torch.from_numpy(sample.tokens.astype(np.int64))
    ]
    return chosen.numpy(), -(logprobs.exp() * logprobs).sum(-1).numpy()


def tokens_of(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


class EndsAfter:
    """A watch that ends a reply with its n-th token."""

    def __init__(self, number: int) -> None:
        self.left = number

    def ends(self, token: int) -> FinishReason | None:
        self.left -= 1
        return FinishReason.ABORT if self.left == 0 else None


def test_a_watch_ends_a_reply_with_the_token_it_names_and_changes_nothing_before(
    engine: Engine,
) -> None:
    prompts = ragged_prompts()
    whole = generate(engine, prompts, SamplingParams(max_new_tokens=12), seeds=range(7))
    lengths = iter(range(1, 8))
    params = SamplingParams(max_new_tokens=12, watch=lambda: EndsAfter(next(lengths)))
    watched = generate(engine, prompts, params, seeds=range(7))
    assert sorted(len(sample.tokens) for sample in watched) == [1, 2, 3, 4, 5, 6, 7]
    for sample, longer in zip(watched, whole, strict=True):
        size = len(sample.tokens)
        assert sample.tokens.tolist() == longer.tokens[:size].tolist()
        np.testing.assert_allclose(sample.logprobs, longer.logprobs[:size], atol=1e-5)
        assert sample.finish_reason is FinishReason.ABORT


def test_a_stop_token_and_the_limit_come_before_a_watch_that_ends_later(
    engine: Engine,
) -> None:
    every = tuple(range(VOCAB_SIZE))
    late = SamplingParams(max_new_tokens=3, watch=lambda: EndsAfter(4))
    [cut] = generate(engine, [np.array([1])], late, seeds=[0])
    assert (len(cut.tokens), cut.finish_reason) == (3, FinishReason.LENGTH)
    both = SamplingParams(
        max_new_tokens=3,
        stop_token_ids=every,
        watch=lambda: EndsAfter(1),
    )
    [stopped] = generate(engine, [np.array([1])], both, seeds=[0])
    assert (len(stopped.tokens), stopped.finish_reason) == (1, FinishReason.STOP)


def test_an_empty_call_gives_no_samples(engine: Engine) -> None:
    assert generate(engine, [], SamplingParams(max_new_tokens=4), seeds=[]) == []


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_and_entropies_are_those_of_the_sampling_distribution(
    engine: Engine, case: EngineCase, model: PreTrainedModel, temperature: float
) -> None:
    prompts = ragged_prompts()
    params = SamplingParams(max_new_tokens=9, temperature=temperature)
    samples = generate(engine, prompts, params, seeds=range(7))
    for prompt, sample in zip(prompts, samples, strict=True):
        assert len(sample.tokens) == 9
        logprobs, entropies = expected(model, prompt, sample, temperature)
        np.testing.assert_allclose(sample.logprobs, logprobs, atol=case.tolerance)
        assert (sample.entropies is not None) == case.has_entropies
        if sample.entropies is not None:
            np.testing.assert_allclose(sample.entropies, entropies, atol=10 * case.tolerance)


def test_conversations_stay_exact_over_turns(
    engine: Engine, case: EngineCase, model: PreTrainedModel
) -> None:
    """Prompt k+1 = prompt k + response k + feedback, ragged, and rows end at different turns."""
    prompts = ragged_prompts()
    rng = np.random.default_rng(1)
    params = SamplingParams(max_new_tokens=8, stop_token_ids=tuple(range(20)))
    gaps: list[np.ndarray] = []
    for turn in range(4):
        samples = generate(engine, prompts, params, seeds=[100 * turn + i for i in range(7 - turn)])
        for prompt, sample in zip(prompts, samples, strict=True):
            gaps.append(expected(model, prompt, sample)[0] - sample.logprobs)
        prompts = [
            np.concatenate([prompt, sample.tokens, rng.integers(0, VOCAB_SIZE, 1 + i % 3)])
            for i, (prompt, sample) in enumerate(zip(prompts, samples, strict=True))
        ][1:]
    gap = np.concatenate(gaps).astype(np.float64)
    assert np.abs(gap).max() < case.tolerance
    # k3 = exp(g) - 1 - g is g^2 / 2 for small g; expm1 keeps the digits that exp(g) - 1 loses.
    assert np.mean(np.expm1(gap) - gap) < case.tolerance**2


def test_a_stop_token_ends_a_row_and_is_its_last_token(engine: Engine) -> None:
    stops = tuple(range(12))
    params = SamplingParams(max_new_tokens=12, stop_token_ids=stops)
    samples = generate(engine, ragged_prompts(24), params, seeds=range(24))
    reasons = set()
    for sample in samples:
        reasons.add(sample.finish_reason)
        assert not set(sample.tokens[:-1].tolist()) & set(stops)
        if sample.finish_reason is FinishReason.STOP:
            assert sample.tokens[-1] in stops
        else:
            assert len(sample.tokens) == 12
            assert sample.tokens[-1] not in stops
    assert reasons == {FinishReason.STOP, FinishReason.LENGTH}


def test_one_token_and_a_stop_at_the_limit(engine: Engine) -> None:
    """A stop token that is also the last one allowed counts as a stop."""
    every = SamplingParams(max_new_tokens=1, stop_token_ids=tuple(range(VOCAB_SIZE)))
    none = SamplingParams(max_new_tokens=1)
    prompts = ragged_prompts(3)
    stopped = generate(engine, prompts, every, seeds=range(3))
    cut = generate(engine, prompts, none, seeds=range(3))
    assert [sample.finish_reason for sample in stopped] == [FinishReason.STOP] * 3
    assert [sample.finish_reason for sample in cut] == [FinishReason.LENGTH] * 3
    assert tokens_of(stopped) == tokens_of(cut)


def test_the_same_seed_gives_the_same_sample(make: Make, model: PreTrainedModel) -> None:
    params = SamplingParams(max_new_tokens=10)
    prompts = ragged_prompts()
    first = make(model)
    samples = generate(first, prompts, params, seeds=range(7))
    first.close()
    second = make(model)
    again = generate(second, prompts, params, seeds=range(7))
    other = generate(second, prompts, params, seeds=range(50, 57))
    second.close()
    assert tokens_of(samples) == tokens_of(again)
    assert tokens_of(samples) != tokens_of(other)


def test_siblings_differ_by_their_seeds_only(engine: Engine) -> None:
    prompt = ragged_prompts()[4]
    params = SamplingParams(max_new_tokens=10)
    samples = tokens_of(generate(engine, [prompt] * 6, params, seeds=[1, 2, 3, 1, 2, 3]))
    assert samples[:3] == samples[3:]
    assert len({tuple(tokens) for tokens in samples}) == 3


def test_a_sample_does_not_depend_on_the_rest_of_the_call(engine: Engine) -> None:
    prompts = ragged_prompts()
    params = SamplingParams(max_new_tokens=10, stop_token_ids=(0, 1, 2))
    together = tokens_of(generate(engine, prompts, params, seeds=range(7)))
    backwards = tokens_of(generate(engine, prompts[::-1], params, seeds=range(6, -1, -1)))
    assert backwards[::-1] == together
    for i in range(7):
        assert tokens_of(generate(engine, [prompts[i]], params, seeds=[i])) == [together[i]]


def test_greedy_takes_the_likeliest_token(
    engine: Engine, case: EngineCase, model: PreTrainedModel
) -> None:
    """Its log-probs are those at temperature 1."""
    prompts = ragged_prompts()
    samples = generate(
        engine, prompts, SamplingParams(max_new_tokens=6, temperature=0), seeds=range(7)
    )
    for prompt, sample in zip(prompts, samples, strict=True):
        tokens = np.concatenate([prompt, sample.tokens])
        likeliest = full_logits(model, tokens)[len(prompt) - 1 : -1].argmax(-1)
        assert sample.tokens.tolist() == likeliest.tolist()
        np.testing.assert_allclose(
            sample.logprobs, expected(model, prompt, sample)[0], atol=case.tolerance
        )


def test_top_k_keeps_the_k_likeliest_and_renormalises(
    engine: Engine, case: EngineCase, model: PreTrainedModel
) -> None:
    prompts = ragged_prompts()
    samples = generate(engine, prompts, SamplingParams(max_new_tokens=5, top_k=3), seeds=range(7))
    for prompt, sample in zip(prompts, samples, strict=True):
        tokens = np.concatenate([prompt, sample.tokens])
        logits = full_logits(model, tokens)[len(prompt) - 1 : -1]
        best = logits.topk(3, dim=-1)
        logprobs = torch.log_softmax(best.values.double(), dim=-1)
        for t, token in enumerate(sample.tokens.tolist()):
            rank = best.indices[t].tolist().index(token)
            assert sample.logprobs[t] == pytest.approx(logprobs[t, rank].item(), abs=case.tolerance)


def test_new_weights_are_sampled_from_after_sync(make: Make, case: EngineCase) -> None:
    """And nothing computed with the old ones is used again."""
    old, new = make_model("qwen2", seed=0), make_model("qwen2", seed=1)
    engine = make(old)
    prompts = ragged_prompts()
    params = SamplingParams(max_new_tokens=6)
    before = generate(engine, prompts, params, seeds=range(7))
    engine.sync_weights(Policy(model=new, version=8))
    longer = [np.concatenate([p, s.tokens, [5]]) for p, s in zip(prompts, before, strict=True)]
    after = generate(engine, longer, params, seeds=range(7))
    assert {sample.policy_version for sample in before} == {3}
    assert {sample.policy_version for sample in after} == {8}
    for prompt, sample in zip(longer, after, strict=True):
        np.testing.assert_allclose(
            sample.logprobs, expected(new, prompt, sample)[0], atol=case.tolerance
        )
    engine.close()


def test_results_are_typed_and_read_only(engine: Engine) -> None:
    [sample] = generate(engine, [np.array([1, 2])], SamplingParams(max_new_tokens=3), seeds=[0])
    assert sample.tokens.dtype == np.int32
    assert sample.logprobs.dtype == np.float32
    if sample.entropies is not None:
        assert sample.entropies.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        sample.tokens[0] = 0


@pytest.mark.parametrize(
    ("prompt", "message"),
    [([], "shape"), ([3, VOCAB_SIZE], "vocabulary"), ([-1], "vocabulary"), ([[1, 2]], "shape")],
)
def test_prompts_that_cannot_be_forwarded_are_named(
    engine: Engine, prompt: list[int], message: str
) -> None:
    params = SamplingParams(max_new_tokens=2)
    with pytest.raises(ValueError, match=f"prompt 1 has.*{message}"):
        generate(engine, [np.array([1]), np.array(prompt, dtype=np.int32)], params, seeds=[0, 1])


def test_one_seed_per_prompt(engine: Engine) -> None:
    with pytest.raises(ValueError, match="2 prompts with 1 seeds"):
        generate(engine, [np.array([1])] * 2, SamplingParams(max_new_tokens=2), seeds=[0])


def test_a_stop_token_outside_the_vocabulary_is_an_error(engine: Engine) -> None:
    params = SamplingParams(max_new_tokens=2, stop_token_ids=(5, 4000))
    with pytest.raises(ValueError, match="4000"):
        generate(engine, [np.array([1])], params, seeds=[0])


def test_a_closed_engine_says_so(make: Make, model: PreTrainedModel) -> None:
    engine = make(model)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="closed"):
        generate(engine, [np.array([1])], SamplingParams(max_new_tokens=2), seeds=[0])
