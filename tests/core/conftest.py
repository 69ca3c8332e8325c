"""Small tokenizers, made in code: one vocabulary under the chat templates of three families."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CHATML = (
    "{%- for m in messages -%}"
    "{{- '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)
LLAMA3 = (
    "{{- bos_token -}}"
    "{%- for m in messages -%}"
    "{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' -}}"
    "{{- m['content'] | trim + '<|eot_id|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}"
    "{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}"
    "{%- endif -%}"
)
SHIPPED = (
    "{%- for m in messages -%}"
    "{{- '<|' + m['role'] + '|>' + m['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "shipped": SHIPPED}

CONTROL_TOKENS = {
    "chatml": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    "llama3": [
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eot_id|>",
    ],
    "shipped": ["<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"],
}
SPECIAL_ROLES = {
    "chatml": {"eos_token": "<|endoftext|>"},
    "llama3": {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"},
    "shipped": {"eos_token": "<|end|>", "pad_token": "<|pad|>"},
}
TEXT = [
    "The goal lies up and to the right of you, so I go up. <think> </think><answer>Up</answer>",
    "You are a player on a frozen lake. Find the goal. system user assistant 123 4",
] * 3


def make_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer with the control tokens and chat template of a family."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=CONTROL_TOKENS[family],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, chat_template=TEMPLATES[family], **SPECIAL_ROLES[family]
    )


@pytest.fixture(scope="session", params=sorted(TEMPLATES))
def any_tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerFast:
    """Each family in turn."""
    return make_tokenizer(request.param)


@pytest.fixture
def tokenizer_of() -> Callable[[str], PreTrainedTokenizerFast]:
    """A fresh tokenizer of a family, which a test may change."""
    return make_tokenizer


@pytest.fixture
def chatml_tokenizer() -> PreTrainedTokenizerFast:
    """A fresh one, which a test may change."""
    return make_tokenizer("chatml")


@pytest.fixture
def shipped_tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer("shipped")
