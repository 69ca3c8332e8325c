"""Cross-scoring equals scoring one pair at a time, and forwards each prompt once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from echoscope.diagnostics.scoring import ModelScorer, ScoringError, cross_score
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "attention_dropout": 0.5,
}


def build(kind: str) -> torch.nn.Module:
    torch.manual_seed(3)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**SHAPE))
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    if kind == "lora":
        adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return get_peft_model(model, adapters)
    return model


@pytest.fixture(scope="module")
def qwen() -> torch.nn.Module:
    return build("qwen2")


def ids(*lengths: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 50, length).astype(np.int32) for length in lengths]


@torch.no_grad()
def naive(model, prompt, reasoning, temperature: float = 1.0) -> np.ndarray:
    """One pass over prompt and reasoning together."""
    row = torch.tensor(np.concatenate([prompt, reasoning]), dtype=torch.long)[None]
    model.eval()
    logits = model(input_ids=row, use_cache=False).logits[0] / temperature
    logprobs = torch.log_softmax(logits.float(), -1)
    places = torch.arange(len(prompt) - 1, len(prompt) + len(reasoning) - 1)
    return logprobs[places, torch.tensor(reasoning, dtype=torch.long)].numpy()


@pytest.mark.parametrize("kind", ["qwen2", "llama", "lora"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_equals_naive_scoring(kind: str, temperature: float) -> None:
    model = build(kind)
    prompts, reasonings = ids(7, 1, 12), ids(5, 1, 9, 3, seed=1)
    scores = cross_score(
        ModelScorer(model, temperature=temperature), prompts, reasonings, [0, 0, 1, 2]
    )
    assert scores.logprobs_MNR.shape == (4, 3, 9)
    for m, reasoning in enumerate(reasonings):
        for n, prompt in enumerate(prompts):
            expected = naive(model, prompt, reasoning, temperature)
            found = scores.logprobs_MNR[m, n]
            np.testing.assert_allclose(found[: len(reasoning)], expected, atol=1e-4)
            assert (found[len(reasoning) :] == 0).all()


def test_each_prompt_is_forwarded_once(qwen) -> None:
    prompts, reasonings = ids(20, 30), ids(6, 6, 6, 6, seed=1)
    cost = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 0, 1, 1]).cost
    # The first token of a reasoning is read off the prompt's own pass: 4 x 5 forwards per prompt.
    assert cost.num_token_forwards == 20 + 30 + 2 * 4 * 5
    assert cost.num_naive == 4 * (20 + 6) + 4 * (30 + 6)
    assert cost.num_padding == 0


def test_equal_rows_are_forwarded_once(qwen) -> None:
    (prompt,), (one, other) = ids(10), ids(4, 6, seed=1)
    cost = cross_score(ModelScorer(qwen), [prompt, prompt], [one, other, one], [0, 0, 1]).cost
    assert cost.num_token_forwards == 10 + 2 * 5
    assert cost.num_padding == 2


def test_chunks_to_a_memory_budget_change_nothing_and_save_padding(qwen) -> None:
    prompts, reasonings = ids(11, 5), ids(2, 9, 4, 9, 1, seed=1)
    whole = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 0, 0, 1, 1])
    chunked = cross_score(
        ModelScorer(qwen, memory_budget_bytes=1), prompts, reasonings, [0, 0, 0, 1, 1]
    )
    np.testing.assert_allclose(chunked.logprobs_MNR, whole.logprobs_MNR, atol=1e-5)
    assert chunked.cost.num_padding == 0 < whole.cost.num_padding


def test_a_model_in_training_mode_is_scored_without_dropout_and_stays_in_it(qwen) -> None:
    prompts, reasonings = ids(8, 9), ids(4, 4, seed=1)
    qwen.eval()
    expected = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 1]).logprobs_MNR
    qwen.train()
    found = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 1]).logprobs_MNR
    np.testing.assert_array_equal(found, expected)
    assert all(module.training for module in qwen.modules())


def test_empty_reasonings_have_no_tokens_to_score(qwen) -> None:
    scores = cross_score(ModelScorer(qwen), ids(4, 5), ids(0, 0), [0, 1])
    assert scores.logprobs_MNR.shape == (2, 2, 0)
    assert scores.cost.num_token_forwards == 0


def test_no_reasonings_at_all(qwen) -> None:
    assert cross_score(ModelScorer(qwen), ids(4, 5), [], []).num_reasonings == 0


def test_an_empty_prompt_is_refused(qwen) -> None:
    with pytest.raises(ScoringError, match="a prompt is empty"):
        cross_score(ModelScorer(qwen), ids(0), ids(3), [0])


def test_a_row_that_does_not_fit_the_model_is_refused(qwen) -> None:
    with pytest.raises(ScoringError, match="70 tokens does not fit the model's 64 positions"):
        cross_score(ModelScorer(qwen), ids(60), ids(10), [0])


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_a_temperature_without_a_distribution_is_refused(qwen, temperature: float) -> None:
    with pytest.raises(ScoringError, match="must be above 0"):
        ModelScorer(qwen, temperature=temperature)


def test_a_model_without_keys_and_values_is_refused() -> None:
    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.zeros(1))
            self.config = Qwen2Config(**SHAPE)

        def forward(self, **_):
            output = torch.nn.Module()
            output.past_key_values = None
            output.logits = torch.zeros(1, 1, 50)
            return output

    with pytest.raises(ScoringError, match="Recurrent does not give back keys and values"):
        cross_score(ModelScorer(Recurrent()), ids(4), ids(2), [0])
