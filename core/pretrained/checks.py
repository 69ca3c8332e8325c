"""Is a converted model right: its tokenizer to the letter, its perplexity to a figure?"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from ..config.loading import ConfigError
from ..config.settings import ModelConfig
from ..policy import load_model
from ..rollout.chat import load_chat

TEXT = (
    "The lighthouse keeper climbed the stairs every evening to light the lamp. When the fog came "
    "in from the sea, he rang the bell so that ships would not run onto the rocks. One night in "
    "1887 the storm was so strong that the lamp went out twice, and both times he climbed the 128 "
    "steps again in the dark. In the morning three ships lay safe in the harbour."
)
"""The fixed text whose perplexity is known. Written for this check."""
_ROUND_TRIPS = (
    TEXT,
    "x = 128 * (3.5 - 7) # naïve, 10 000 €",
    "<think>left, then up</think>\n<answer>up || left</answer>",
    "日本語 и русский, tabs\tand\n\nempty lines  ",
)
_MAX_DISTANCE = 0.02
"""Largest relative distance of the perplexity from the known one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCheck:
    perplexity: float
    num_tokens: int
    """Of the fixed text."""
    num_parameters: int
    num_round_trips: int


def check_model(folder: Path, *, expected_perplexity: float) -> ModelCheck:
    """Load a folder in float32 on the CPU and look at what it makes of fixed texts.

    Raises:
        ConfigError: it cannot be loaded, a text does not survive its tokenizer, its chat template
            cannot be used, or its perplexity is not the expected one.
    """
    tokenizer = load_chat(folder).tokenizer
    for text in _ROUND_TRIPS:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        if tokenizer.decode(ids, skip_special_tokens=False) != text:
            raise ConfigError(f"the tokenizer in {folder} changes the text {text[:40]!r}")
    model = load_model(str(folder), ModelConfig(path=str(folder), dtype="float32", device="cpu"))
    ids = torch.tensor([tokenizer(TEXT, add_special_tokens=False).input_ids])
    with torch.no_grad():
        logprobs = model(input_ids=ids).logits[0, :-1].float().log_softmax(dim=-1)
    perplexity = math.exp(-float(logprobs.gather(-1, ids[0, 1:, None]).mean()))
    if not abs(perplexity / expected_perplexity - 1) <= _MAX_DISTANCE:
        raise ConfigError(
            f"the converted model has a perplexity of {perplexity:.2f} on a fixed text, not "
            f"{expected_perplexity:.2f}: the conversion went wrong and was not kept; the "
            "versions of transformers and gguf in constraints.txt are known to work"
        )
    return ModelCheck(
        perplexity=perplexity,
        num_tokens=ids.shape[1],
        num_parameters=sum(weight.numel() for weight in model.parameters()),
        num_round_trips=len(_ROUND_TRIPS),
    )
