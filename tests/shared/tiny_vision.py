"""A small random vision-language model of SmolVLM's kind, with its processor; made offline."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    Idefics3Config,
    Idefics3ForConditionalGeneration,
    Idefics3Processor,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from echoscope.core.policy_assets import train_tokenizer

PLACES = 4
"""Tokens of a picture: 4 x 4 patches of 8 pixels, 2 x 2 of them to one token."""
IMAGE_TOKEN = "<image>"
_FRAME_TOKENS = ("<fake_token_around_image>", "<global-img>", "<end_of_utterance>")
_TEMPLATE = (
    "{%- for message in messages -%}{{- '<|' + message['role'] + '|>' -}}"
    "{%- if message['content'] is string -%}{{- message['content'] -}}{%- else -%}"
    "{%- for part in message['content'] -%}"
    "{{- '<image>' if part['type'] == 'image' else part['text'] -}}"
    "{%- endfor -%}{%- endif -%}{{- '<|end|>' -}}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
_TEXTS = (
    "You solve a task step by step in a text world. Reply with <think>your reasoning</think>"
    "<answer>your action</answer> and nothing else. Goal 2 up 1 right. Near: up ice, down hole.",
)


def make_vision_model(folder: Path, *, kind: str = "idefics3", seed: int = 0) -> str:
    """Write model, tokenizer and processor; about 60,000 weights. Returns the folder as text."""
    make_config, make_model = {
        "idefics3": (Idefics3Config, Idefics3ForConditionalGeneration),
        "smolvlm": (SmolVLMConfig, SmolVLMForConditionalGeneration),
    }[kind]
    tokenizer = train_tokenizer(_TEXTS * 3, 420)
    tokenizer.add_special_tokens({"additional_special_tokens": [IMAGE_TOKEN, *_FRAME_TOKENS]})
    tokenizer.chat_template = _TEMPLATE
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2}
    config = make_config(
        image_token_id=tokenizer.convert_tokens_to_ids(IMAGE_TOKEN),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
        text_config={
            "model_type": "llama",
            "vocab_size": len(tokenizer),
            "num_hidden_layers": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 2048,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **sizes,
        },
        vision_config={"num_hidden_layers": 1, "image_size": 32, "patch_size": 8, **sizes},
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make_model(config)
        with torch.no_grad():  # or pictures would hardly matter
            for name, parameter in model.named_parameters():
                if parameter.ndim >= 2:
                    parameter.mul_(3)
                if name.endswith("connector.modality_projection.proj.weight"):
                    parameter.mul_(3)
    pictures = Idefics3ImageProcessorPil(
        do_image_splitting=False, size={"longest_edge": 32}, max_image_size={"longest_edge": 32}
    )
    processor = Idefics3Processor(
        pictures, tokenizer, image_seq_len=PLACES, chat_template=_TEMPLATE
    )
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return str(folder)
