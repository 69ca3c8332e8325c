"""What the built-in engine must know of a Hugging Face model before it runs it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from peft import PeftModel
from transformers import PreTrainedModel

from echoscope.store.records import IntArray

from ...pretrained.vision import FIRST_IMAGE_ID, ImageEmbedding
from ..base import SamplingParams


def runnable(model: PreTrainedModel) -> PreTrainedModel:
    """The module to run, adapters included.

    Raises:
        ValueError: the model is of a kind whose cache this engine does not keep.
    """
    if isinstance(model, PeftModel):
        if model.active_peft_config.is_prompt_learning:
            raise ValueError(
                f"the hf engine cannot sample from {model.active_peft_config.peft_type} adapters: "
                "they are virtual tokens, use LoRA"
            )
        model = model.get_base_model()
    config = model.config.get_text_config()
    if not config._attn_implementation.startswith(("sdpa", "eager")):  # sdpa_packed is sdpa here
        raise ValueError(
            f"the hf engine needs attn_implementation sdpa or eager, not "
            f"{config._attn_implementation}: it passes an explicit mask"
        )
    other = _layer_kinds(model) - {"full_attention", "sliding_attention"}
    if other:
        raise ValueError(
            f"the hf engine keeps keys and values of softmax attention only; "
            f"{type(model).__name__} has layers of kind {', '.join(sorted(other))}"
        )
    missing = {"position_ids", "past_key_values", "logits_to_keep"} - set(
        inspect.signature(model.forward).parameters
    )
    if missing:
        raise ValueError(
            f"{type(model).__name__}.forward does not take {', '.join(sorted(missing))}, which the "
            "hf engine needs"
        )
    return model


def _layer_kinds(model: PreTrainedModel) -> set[str]:
    config = model.config.get_text_config()
    if hasattr(config, "layer_types") and config.layer_types:
        return set(config.layer_types)
    has_window = hasattr(config, "sliding_window") and config.sliding_window is not None
    return {"sliding_attention"} if has_window else {"full_attention"}


def max_positions(model: PreTrainedModel) -> int:
    """Longest row. Up to its window, a sliding layer is one with full attention."""
    config = model.config.get_text_config()
    positions = int(config.max_position_embeddings)
    if "sliding_attention" in _layer_kinds(model):
        return min(positions, int(config.sliding_window))
    return positions


def weights_stamp(model: PreTrainedModel) -> int:
    """Changes with every in-place change of a weight that autograd counts (optimizer steps do)."""
    return sum(parameter._version for parameter in model.parameters())


def checked_limits(
    model: PreTrainedModel,
    prompts: Sequence[IntArray],
    params: SamplingParams,
    seeds: Sequence[int],
) -> NDArray[np.int64]:
    """New tokens each prompt may get, (B,): `max_new_tokens` or what the positions leave.

    Raises:
        ValueError: an empty prompt, a token id outside the vocabulary, a prompt that leaves no room
            for a response, or a different number of seeds.
    """
    if len(prompts) != len(seeds):
        raise ValueError(f"{len(prompts)} prompts with {len(seeds)} seeds: give one per prompt")
    vocab_size = int(model.get_input_embeddings().num_embeddings)
    outside = [token for token in params.stop_token_ids if not 0 <= token < vocab_size]
    if outside:
        raise ValueError(f"stop token ids {outside} lie outside the vocabulary of {vocab_size}")
    positions = max_positions(model)
    limits = np.full(len(prompts), params.max_new_tokens, dtype=np.int64)
    for i, prompt in enumerate(prompts):
        if prompt.ndim != 1 or len(prompt) == 0:
            raise ValueError(f"prompt {i} has shape {prompt.shape}: it needs token ids, (Lp,)")
        text = _text_ids(model, prompt)
        if len(text) and not 0 <= text.min() <= text.max() < vocab_size:
            raise ValueError(
                f"prompt {i} has token ids from {text.min()} to {text.max()}, but the vocabulary "
                f"has {vocab_size}"
            )
        if len(prompt) >= positions:
            raise ValueError(
                f"prompt {i} has {len(prompt)} tokens, but the model has {positions} positions "
                "(its table or its attention window): lower context.max_prompt_tokens"
            )
        limits[i] = min(params.max_new_tokens, positions - len(prompt))
    return limits


def _text_ids(model: PreTrainedModel, prompt: IntArray) -> IntArray:
    """A prompt without the ids of pictures that the model knows."""
    embedding = model.get_input_embeddings()
    if not isinstance(embedding, ImageEmbedding):
        return prompt
    is_image = prompt >= FIRST_IMAGE_ID
    return prompt[~is_image] if embedding.images.knows(prompt[is_image]) else prompt
