"""What is particular to the built-in engine: its cache, its batches, the trained module it runs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from forwarded import counted_tokens
from generating import generate
from held_caches import cache_bytes
from peft import LoraConfig, get_peft_model
from transformers import (
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.engines.base import Sample, SamplingParams
from echoscope.core.engines.hf import continuous, forward
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.hf.sampling import PolicyNumericsError
from echoscope.store.records import FinishReason

VOCAB_SIZE = 61


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: PreTrainedModel
    version: int


def make_model(seed: int = 0, **changes: object) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    shape: dict[str, object] = {
        "vocab_size": VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = Qwen2ForCausalLM(Qwen2Config(**(shape | changes)))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return model.eval()


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return make_model()


def engine_for(model: PreTrainedModel, **settings: object) -> HfEngine:
    return HfEngine(model, config=HfEngineConfig(**settings))


def random_prompts(lengths: list[int], seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, VOCAB_SIZE, length).astype(np.int32) for length in lengths]


def logprob_error(model: PreTrainedModel, prompt: np.ndarray, sample: Sample) -> float:
    """Largest distance of a sample's log-probs from a full forward pass, nats."""
    tokens = torch.from_numpy(np.concatenate([prompt, sample.tokens]).astype(np.int64))
    with torch.no_grad():
        logprobs = torch.log_softmax(model(tokens[None], use_cache=False).logits[0].float(), -1)
    chosen = logprobs[len(prompt) - 1 : -1].gather(1, tokens[len(prompt) :, None])[:, 0]
    return float(np.abs(chosen.numpy() - sample.logprobs).max())


def tokens_of(samples: list[Sample]) -> list[list[int]]:
    return [sample.tokens.tolist() for sample in samples]


def continued(
    prompts: list[np.ndarray], samples: list[Sample], rng: np.random.Generator
) -> list[np.ndarray]:
    return [
        np.concatenate([prompt, sample.tokens, rng.integers(0, VOCAB_SIZE, rng.integers(1, 6))])
        for prompt, sample in zip(prompts, samples, strict=True)
    ]


def play(engine: HfEngine, prompts: list[np.ndarray], turns: int) -> list[list[list[int]]]:
    """Token ids of every turn of conversations with random feedback."""
    rng = np.random.default_rng(9)
    params = SamplingParams(max_new_tokens=10, stop_token_ids=(1, 2, 3, 4, 5))
    out = []
    for turn in range(turns):
        samples = generate(
            engine, prompts, params, seeds=[turn * 1000 + i for i in range(len(prompts))]
        )
        out.append(tokens_of(samples))
        prompts = continued(prompts, samples, rng)
    return out


# -- the cache ------------------------------------------------------------------------------------


def test_reuse_gives_the_same_samples_as_none(model: Qwen2ForCausalLM) -> None:
    prompts = random_prompts([3, 40, 3, 17, 120, 8])
    prompts[2] = prompts[0]
    with_reuse = play(engine_for(model), prompts, 4)
    without = play(engine_for(model, reuse_cache=False), prompts, 4)
    assert with_reuse == without


def test_a_turn_forwards_its_new_tokens_only(model: Qwen2ForCausalLM) -> None:
    """Two rows of 30 and 50, one new token each: turn 2 forwards response end and feedback."""
    engine = engine_for(model)
    prompts = random_prompts([30, 50])
    with counted_tokens() as counts:
        samples = generate(engine, prompts, SamplingParams(max_new_tokens=4), seeds=[0, 1])
    assert counts.prefilled == 80
    # Of 4 sampled tokens the first 3 are forwarded to get the next one.
    assert counts.decoded == 6
    prompts = [np.concatenate([p, s.tokens, [7]]) for p, s in zip(prompts, samples, strict=True)]
    with counted_tokens() as counts:
        generate(engine, prompts, SamplingParams(max_new_tokens=4), seeds=[2, 3])
    assert counts.prefilled == sum(map(len, prompts)) - (33 + 53) == 2 * 2


def test_siblings_are_forwarded_once(model: Qwen2ForCausalLM) -> None:
    engine = engine_for(model)
    first, second = random_prompts([40, 25])
    with counted_tokens() as counts:
        generate(
            engine,
            [first, second, first, first, second],
            SamplingParams(max_new_tokens=1),
            seeds=range(5),
        )
    assert counts.prefilled == 65


def test_a_shared_beginning_is_forwarded_once(model: Qwen2ForCausalLM) -> None:
    """Six tasks under one system prompt of 200 tokens: 200 + 6 * 10, not 6 * 210."""
    engine = engine_for(model)
    [system, *tasks] = random_prompts([200] + [10] * 6)
    prompts = [np.concatenate([system, [i], task[1:]]) for i, task in enumerate(tasks)]
    with counted_tokens() as counts:
        samples = generate(engine, prompts, SamplingParams(max_new_tokens=5), seeds=range(6))
    assert counts.prefilled == 260
    for prompt, sample in zip(prompts, samples, strict=True):
        assert logprob_error(model, prompt, sample) < 1e-5


def test_without_reuse_every_prompt_is_forwarded_whole(model: Qwen2ForCausalLM) -> None:
    engine = engine_for(model, reuse_cache=False)
    [prompt] = random_prompts([40])
    with counted_tokens() as counts:
        for _ in range(2):
            generate(engine, [prompt] * 3, SamplingParams(max_new_tokens=1), seeds=range(3))
    assert counts.prefilled == 6 * 40


def test_a_rewritten_history_uses_what_still_agrees(model: Qwen2ForCausalLM) -> None:
    """One row continues, the other keeps only its first 20 tokens (a history window)."""
    engine = engine_for(model)
    prompts = random_prompts([30, 30])
    params = SamplingParams(max_new_tokens=6)
    samples = generate(engine, prompts, params, seeds=[0, 1])
    going_on = np.concatenate([prompts[0], samples[0].tokens, [9]])
    changed = (prompts[1][20] + 1) % VOCAB_SIZE
    rewritten = np.concatenate([prompts[1][:20], [changed], prompts[1][:7]])
    with counted_tokens() as counts:
        after = generate(engine, [going_on, rewritten], params, seeds=[2, 3])
    assert counts.prefilled == len(going_on) - 35 + len(rewritten) - 20
    assert logprob_error(model, going_on, after[0]) < 1e-5
    assert logprob_error(model, rewritten, after[1]) < 1e-5


def test_a_new_collection_is_bit_identical_whatever_came_before(model: Qwen2ForCausalLM) -> None:
    """So a resumed run, whose engine is fresh, samples what an uninterrupted one samples."""
    prompts = random_prompts([30, 31, 90, 5])
    params = SamplingParams(max_new_tokens=12)
    used, fresh = engine_for(model), engine_for(model)
    play(used, random_prompts([60, 3, 3, 200, 150, 7], seed=5), 3)
    generate(used, prompts, params, seeds=range(10, 14))
    after_others = generate(used, prompts, params, seeds=range(4))
    alone = generate(fresh, prompts, params, seeds=range(4))
    for left, right in zip(after_others, alone, strict=True):
        assert left.tokens.tobytes() == right.tokens.tobytes()
        assert left.logprobs.tobytes() == right.logprobs.tobytes()
        assert left.entropies is not None
        assert right.entropies is not None
        assert left.entropies.tobytes() == right.entropies.tobytes()


def test_more_prompts_than_rows_go_in_chunks(model: Qwen2ForCausalLM) -> None:
    prompts = random_prompts([4, 9, 30, 2, 6, 50, 11, 3, 20, 8])
    prompts[7] = prompts[2]
    with counted_tokens() as counts:
        in_chunks = play(engine_for(model, max_batch_rows=4), prompts, 3)
    with counted_tokens() as without:
        played_anew = play(engine_for(model, max_batch_rows=4, reuse_cache=False), prompts, 3)
    assert in_chunks == played_anew == play(engine_for(model), prompts, 3)
    assert counts.prefilled < without.prefilled


def test_memory_is_bounded_by_the_rows_allowed(model: Qwen2ForCausalLM) -> None:
    """2 layers x (keys, values) x (4 rows x 128 columns + 1 for padding) x 32 floats."""
    engine = engine_for(model, max_batch_rows=4)
    for seed in range(3):
        prompts = random_prompts([40] * 10, seed=seed)
        generate(engine, prompts, SamplingParams(max_new_tokens=30), seeds=range(10))
    assert cache_bytes(engine) == 2 * 2 * (4 * 128 + 1) * 32 * 4
    engine.sync_weights(Policy(model=model, version=1))
    assert cache_bytes(engine) == 0


def test_the_cache_grows_while_decoding(model: Qwen2ForCausalLM) -> None:
    """200 new tokens cross several blocks of 64 columns."""
    prompts = random_prompts([3, 60, 64])
    samples = generate(
        engine_for(model), prompts, SamplingParams(max_new_tokens=200), seeds=[1, 2, 3]
    )
    for prompt, sample in zip(prompts, samples, strict=True):
        assert len(sample.tokens) == 200
        assert logprob_error(model, prompt, sample) < 1e-5


def test_long_prefills_go_in_pieces(
    model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget of 16 padded tokens: rows apart, and long rows in pieces of 16."""
    prompts = random_prompts([50, 3, 5, 33, 16, 8])
    params = SamplingParams(max_new_tokens=4)
    whole = generate(engine_for(model), prompts, params, seeds=range(6))
    monkeypatch.setattr(forward, "MAX_PREFILL_TOKENS", 16)
    pieces = generate(engine_for(model), prompts, params, seeds=range(6))
    assert tokens_of(pieces) == tokens_of(whole)
    for prompt, sample in zip(prompts, pieces, strict=True):
        assert logprob_error(model, prompt, sample) < 1e-5


def test_changed_weights_are_noticed_without_a_sync(model: Qwen2ForCausalLM) -> None:
    policy = make_model(seed=4)
    engine = engine_for(policy)
    prompts = random_prompts([30, 20])
    params = SamplingParams(max_new_tokens=5)
    samples = generate(engine, prompts, params, seeds=[0, 1])
    with torch.no_grad():
        policy.model.layers[0].mlp.up_proj.weight.mul_(1.5)
    prompts = continued(prompts, samples, np.random.default_rng(0))
    for prompt, sample in zip(
        prompts, generate(engine, prompts, params, seeds=[2, 3]), strict=True
    ):
        assert logprob_error(policy, prompt, sample) < 1e-5


# -- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.1])
def test_leaving_rows_change_no_sample(
    model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch, fraction: float
) -> None:
    """Whether finished rows leave at once, late or never."""
    prompts = random_prompts([5, 80, 12, 12, 3, 44, 9, 27])
    usual = play(engine_for(model), prompts, 3)
    monkeypatch.setattr(continuous, "MIN_LEAVING_FRACTION", fraction)
    assert play(engine_for(model), prompts, 3) == usual


@pytest.mark.parametrize("every", [3, 64])
def test_looking_rarely_changes_no_sample(
    model: Qwen2ForCausalLM, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    """On a GPU the host looks at the tokens every few steps; what rows ran over is cut off."""
    prompts = random_prompts([5, 80, 12, 3])
    usual = play(engine_for(model), prompts, 3)
    monkeypatch.setattr(continuous, "CHECK_EVERY", {"cpu": every})
    assert play(engine_for(model), prompts, 3) == usual


def test_the_position_table_limits_a_response() -> None:
    """32 positions: a prompt of 30 gets two tokens, one of 10 gets all eight."""
    short = make_model(max_position_embeddings=32)
    engine = engine_for(short)
    prompts = random_prompts([30, 10])
    samples = generate(engine, prompts, SamplingParams(max_new_tokens=8), seeds=[0, 1])
    assert [len(sample.tokens) for sample in samples] == [2, 8]
    assert {sample.finish_reason for sample in samples} == {FinishReason.LENGTH}
    with pytest.raises(ValueError, match="prompt 0 has 32 tokens, but the model has 32 positions"):
        generate(engine, random_prompts([32]), SamplingParams(max_new_tokens=8), seeds=[0])


# -- the module -----------------------------------------------------------------------------------


def test_each_module_gets_its_own_mode_back() -> None:
    policy = make_model(attention_dropout=0.5)
    policy.train()
    policy.model.norm.eval()
    generate(engine_for(policy), random_prompts([5]), SamplingParams(max_new_tokens=2), seeds=[0])
    assert policy.training
    assert policy.model.layers[0].self_attn.training
    assert not policy.model.norm.training


def test_dropout_and_gradient_checkpointing_do_not_reach_sampling() -> None:
    policy = make_model(attention_dropout=0.5)
    policy.train()
    policy.gradient_checkpointing_enable()
    prompts = random_prompts([5, 9, 30])
    samples = generate(
        engine_for(policy), prompts, SamplingParams(max_new_tokens=8), seeds=range(3)
    )
    policy.eval()
    for prompt, sample in zip(prompts, samples, strict=True):
        assert logprob_error(policy, prompt, sample) < 1e-5


def test_the_module_can_be_trained_between_calls() -> None:
    """Nothing made while sampling lingers in the module and breaks the backward pass."""
    policy = make_model()
    engine = engine_for(policy)
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    prompts = random_prompts([5, 9])
    for version in (1, 2):
        samples = generate(engine, prompts, SamplingParams(max_new_tokens=4), seeds=[0, 1])
        policy.train()
        tokens = torch.from_numpy(np.concatenate([prompts[0], samples[0].tokens]).astype(np.int64))
        policy(tokens[None], labels=tokens[None]).loss.backward()
        optimizer.step()
        engine.sync_weights(Policy(model=policy, version=version))
    policy.eval()
    assert logprob_error(policy, prompts[0], samples[0]) > 1e-4
    samples = generate(engine, prompts, SamplingParams(max_new_tokens=4), seeds=[0, 1])
    assert logprob_error(policy, prompts[0], samples[0]) < 1e-5


def test_lora_adapters_are_part_of_the_policy() -> None:
    base = make_model()
    adapted = get_peft_model(
        make_model(),
        LoraConfig(
            r=4, lora_dropout=0.5, init_lora_weights=False, target_modules=["q_proj", "up_proj"]
        ),
    )
    adapted.train()
    prompts = random_prompts([12, 3])
    samples = generate(engine_for(adapted), prompts, SamplingParams(max_new_tokens=6), seeds=[0, 1])
    assert adapted.training
    adapted.eval()
    for prompt, sample in zip(prompts, samples, strict=True):
        assert logprob_error(adapted, prompt, sample) < 1e-5
        assert logprob_error(base, prompt, sample) > 1e-3


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_either_attention_will_do(attention: str) -> None:
    policy = make_model(attn_implementation=attention)
    prompts = random_prompts([12, 3, 30])
    for prompt, sample in zip(
        prompts,
        generate(engine_for(policy), prompts, SamplingParams(max_new_tokens=6), seeds=range(3)),
        strict=True,
    ):
        assert logprob_error(policy, prompt, sample) < 1e-5


def test_bfloat16_weights_are_sampled_in_bfloat16() -> None:
    """Log-probs are then as exact as bfloat16 is: 8 bits, about 0.01 at a logit of 3."""
    policy = make_model().to(torch.bfloat16)
    prompts = random_prompts([12, 3, 30])
    samples = generate(
        engine_for(policy), prompts, SamplingParams(max_new_tokens=6), seeds=range(3)
    )
    for prompt, sample in zip(prompts, samples, strict=True):
        assert logprob_error(policy, prompt, sample) < 0.2


def test_a_sliding_window_is_fine_up_to_its_size() -> None:
    torch.manual_seed(0)
    policy = MistralForCausalLM(
        MistralConfig(
            vocab_size=VOCAB_SIZE,
            hidden_size=64,
            intermediate_size=96,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            sliding_window=24,
        )
    ).eval()
    engine = engine_for(policy)
    [prompt] = random_prompts([20])
    [sample] = generate(engine, [prompt], SamplingParams(max_new_tokens=9), seeds=[0])
    assert len(sample.tokens) == 4
    assert logprob_error(policy, prompt, sample) < 1e-5


def test_models_it_cannot_run_are_refused() -> None:
    mamba = MambaForCausalLM(MambaConfig(vocab_size=11, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ValueError, match="MambaForCausalLM"):
        engine_for(mamba)


# -- numbers that are no numbers ------------------------------------------------------------------


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_broken_weights_give_an_error_and_no_sample(poison: float) -> None:
    policy = make_model()
    engine = engine_for(policy)
    engine.sync_weights(Policy(model=policy, version=6))
    prompts = random_prompts([12, 3])
    params = SamplingParams(max_new_tokens=6)
    generate(engine, prompts, params, seeds=[0, 1])
    healthy = policy.model.norm.weight.detach().clone()
    with torch.no_grad():
        policy.model.norm.weight[5] = poison
    with pytest.raises(PolicyNumericsError, match=r"2 of 2 rows at response token 0.*version 6"):
        generate(engine, prompts, params, seeds=[0, 1])
    with torch.no_grad():
        policy.model.norm.weight.copy_(healthy)
    for prompt, sample in zip(
        prompts, generate(engine, prompts, params, seeds=[0, 1]), strict=True
    ):
        assert logprob_error(policy, prompt, sample) < 1e-5


def test_greedy_notices_broken_weights_too() -> None:
    policy = make_model()
    with torch.no_grad():
        policy.lm_head.weight.fill_(float("nan"))
    with pytest.raises(PolicyNumericsError):
        generate(
            engine_for(policy),
            random_prompts([4]),
            SamplingParams(max_new_tokens=3, temperature=0),
            seeds=[0],
        )
