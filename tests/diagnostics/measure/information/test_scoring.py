"""Cross-scoring equals scoring one pair at a time, and forwards each prompt once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from echoscope.diagnostics.measure.information import scoring
from echoscope.diagnostics.measure.information.cross_scores import ScoringError, cross_score
from echoscope.diagnostics.measure.information.scoring import ModelScorer, interrupting

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
    if kind == "sliding window":
        return MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=6))
    if kind == "positions in the input":
        return GPT2LMHeadModel(
            GPT2Config(vocab_size=50, n_positions=64, n_embd=32, n_layer=2, n_head=4)
        )
    if kind == "eager":
        return Qwen2ForCausalLM(Qwen2Config(**SHAPE, attn_implementation="eager"))
    model = Qwen2ForCausalLM(Qwen2Config(**SHAPE))
    if kind == "lora":
        adapters = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
        return get_peft_model(model, adapters)
    return model


KINDS = ["qwen2", "llama", "lora", "eager", "sliding window", "positions in the input"]


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


def branching(reasonings: list[np.ndarray]) -> list[np.ndarray]:
    """Their beginnings with other ends, and one that is another's beginning."""
    longest = max(reasonings, key=len)
    return [
        *reasonings,
        *(np.append(longest[:k], [k]).astype(np.int32) for k in (2, 4)),
        longest[:3],
    ]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("memory_budget_bytes", [1 << 30, 1])
def test_equals_naive_scoring(
    kind: str, temperature: float, memory_budget_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of 7, 8 and 8 tokens share a pass, those of 1 and 12 do not."""
    model = build(kind)
    prompts, reasonings = ids(7, 1, 12, 8, 8), branching(ids(5, 1, 9, 3, seed=1))
    monkeypatch.setattr(scoring, "MEMORY_BUDGET_BYTES", memory_budget_bytes)
    scorer = ModelScorer(model, temperature=temperature)
    scores = cross_score(scorer, prompts, reasonings, [0, 0, 1, 2, 3, 4, 4])
    assert scores.logprobs_MNR.shape == (7, 5, 9)
    for m, reasoning in enumerate(reasonings):
        for n, prompt in enumerate(prompts):
            expected = naive(model, prompt, reasoning, temperature)
            scored = scores.logprobs_MNR[m, n]
            np.testing.assert_allclose(scored[: len(reasoning)], expected, atol=1e-4)
            assert (scored[len(reasoning) :] == 0).all()


def forwards(scorer: ModelScorer, prompts, reasonings, columns) -> int:
    cross_score(scorer, prompts, reasonings, columns)
    return scorer.tally.num_tokens


def test_each_prompt_is_forwarded_once(qwen) -> None:
    prompts, reasonings = ids(20, 30), ids(6, 6, 6, 6, seed=1)
    # The first token of a reasoning is read off the prompt's own pass: 4 x 5 forwards per prompt.
    assert forwards(ModelScorer(qwen), prompts, reasonings, [0, 0, 1, 1]) == 20 + 30 + 2 * 4 * 5


def test_equal_reasonings_are_forwarded_once(qwen) -> None:
    prompts, (short, other) = ids(10), ids(4, 4, seed=1)
    assert forwards(ModelScorer(qwen), prompts, [short, other, short], [0, 0, 0]) == 10 + 2 * 3


def test_each_prompt_may_have_continuations_of_its_own(qwen) -> None:
    prompts, (short, other) = ids(6, 6, 5), ids(5, 7, seed=1)
    asked = [[short, other[:1]], [short], [other]]
    scored = ModelScorer(qwen).score(prompts, asked)
    assert [len(rows) for rows in scored] == [2, 1, 1]
    for prompt, rows, scores in zip(prompts, asked, scored, strict=True):
        for row, score in zip(rows, scores, strict=True):
            np.testing.assert_allclose(score, naive(qwen, prompt, row), atol=1e-4)


def test_single_tokens_are_predicted_by_the_prompts_alone(qwen) -> None:
    prompts, tokens = ids(6, 6), ids(1, 1, seed=1)
    assert forwards(ModelScorer(qwen), prompts, tokens, [0, 1]) == 12


def test_long_continuations_go_in_several_passes(qwen, monkeypatch) -> None:
    """Of at most 8 tokens: each of 6 alone, so nothing is padded."""
    monkeypatch.setattr(scoring, "PASS_TOKENS", {"cpu": 8})
    prompts, reasonings = ids(4, 4), ids(6, 6, 6, seed=1)
    scored = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 1, 1])
    for m, reasoning in enumerate(reasonings):
        for n, prompt in enumerate(prompts):
            expected = naive(qwen, prompt, reasoning)
            np.testing.assert_allclose(scored.logprobs_MNR[m, n], expected, atol=1e-4)


def test_a_model_in_training_mode_is_scored_without_dropout_and_stays_in_it(qwen) -> None:
    prompts, reasonings = ids(8, 9), ids(4, 4, seed=1)
    qwen.eval()
    expected = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 1]).logprobs_MNR
    qwen.train()
    scored = cross_score(ModelScorer(qwen), prompts, reasonings, [0, 1]).logprobs_MNR
    np.testing.assert_array_equal(scored, expected)
    assert all(module.training for module in qwen.modules())


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


@pytest.mark.parametrize("kind", ["qwen2", "lora", "positions in the input"])
def test_a_check_before_each_layer_ends_the_scoring_and_leaves_the_model_as_it_was(
    kind: str,
) -> None:
    class EnoughError(Exception):
        pass

    calls: list[int] = []

    def check() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise EnoughError

    model = build(kind).train()
    prompts, reasonings = ids(5, 8), ids(4, 6, seed=1)
    before = cross_score(ModelScorer(model), prompts, reasonings, [0, 1]).logprobs_MNR
    with pytest.raises(EnoughError), interrupting(model, check):
        cross_score(ModelScorer(model), prompts, reasonings, [0, 1])
    assert model.training
    after = cross_score(ModelScorer(model), prompts, reasonings, [0, 1]).logprobs_MNR
    np.testing.assert_array_equal(before, after)
    assert len(calls) == 3  # nobody asks any more
