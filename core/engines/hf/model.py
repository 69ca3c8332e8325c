"""What the built-in engine must know of a Hugging Face model before it runs it."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedModel

from ...policy import causal_model
from ..base import PromptLimits


def runnable(model: PreTrainedModel) -> PreTrainedModel:
    """The module to run, adapters included.

    Raises:
        ValueError: the model is of a kind whose cache this engine does not keep.
    """
    model = causal_model(model)
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


def limits_of(model: PreTrainedModel) -> PromptLimits:
    """What it can be asked. Up to its window, a sliding layer is one with full attention."""
    config = model.config.get_text_config()
    positions = int(config.max_position_embeddings)
    if "sliding_attention" in _layer_kinds(model):
        positions = min(positions, int(config.sliding_window))
    vocab_size = int(model.get_input_embeddings().num_embeddings)
    return PromptLimits(vocab_size=vocab_size, positions=positions)


def weights_stamp(weights: Sequence[Tensor]) -> int:
    """Changes with every in-place change of a weight that autograd counts (optimizer steps do)."""
    return sum(weight._version for weight in weights)
