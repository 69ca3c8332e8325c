"""Small models whose attention heads vLLM can compute, and how far an engine is from one."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from generating import generate
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from echoscope.core.engines.base import Engine, Sample, SamplingParams


def make_model(seed: int, *, tied: bool) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(3)
    return model.eval()


def moved(model: PreTrainedModel) -> PreTrainedModel:
    """The same module with every weight moved, as an optimizer step does."""
    torch.manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    return model


def expected(model: Any, prompt: np.ndarray, sample: Sample) -> np.ndarray:
    tokens = torch.from_numpy(np.concatenate([prompt, sample.tokens]).astype(np.int64))
    with torch.no_grad():
        logits = model(tokens[None], use_cache=False).logits[0, len(prompt) - 1 : -1]
    sampled = torch.arange(len(sample.tokens)), tokens[len(prompt) :]
    return logits.double().log_softmax(-1)[sampled].numpy()


def largest_gap(engine: Engine, model: Any, prompts: list[np.ndarray]) -> float:
    samples = generate(
        engine, prompts, SamplingParams(max_new_tokens=16), seeds=range(len(prompts))
    )
    gaps = [
        np.abs(expected(model, prompt, sample) - sample.logprobs).max()
        for prompt, sample in zip(prompts, samples, strict=True)
    ]
    return float(max(gaps))


def some_prompts(length: int = 20, number: int = 6) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, 97, length).astype(np.int32) for _ in range(number)]
