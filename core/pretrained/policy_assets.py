"""The shipped policy and how one like it is made: tokenizer, fresh model, the name `tiny`.

A policy is a folder that `AutoModelForCausalLM` and `AutoTokenizer` load. The shape is Qwen2's, so
that every engine knows it; the tokenizer keeps Qwen2's way of splitting text, because
`AutoTokenizer` puts that into any folder of this model type, and other ids would follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2Tokenizer,
)

from echoscope.diagnostics.config import FrozenModel
from echoscope.store.models import SHIPPED
from echoscope.text.did_you_mean import did_you_mean

from ..config.loading import ConfigError
from .names import FETCHABLE, named_models

PAD_TOKEN = "<|pad|>"
END_TOKEN = "<|end|>"
CONTROL_TOKENS = (PAD_TOKEN, END_TOKEN, "<|system|>", "<|user|>", "<|assistant|>")
_MAKES = {"tiny": "make policy", "tiny-puzzles": "make policy-puzzles"}
TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
"""One token each, yet ordinary text: decoding keeps them, or replies could not be parsed."""

NUM_BYTES = 256
_NUM_RESERVED = len(CONTROL_TOKENS) + NUM_BYTES + len(TAG_TOKENS)

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


class PolicyShape(FrozenModel):
    """Size of a fresh policy. The default has 0.85 million parameters.

    Heads are 32 wide: engines with fused attention refuse narrower ones.
    """

    vocab_size: int = Field(640, ge=_NUM_RESERVED, description="At most; text may give fewer.")
    hidden_size: int = Field(128, ge=32, multiple_of=32)
    intermediate_size: int = Field(384, ge=32)
    num_layers: int = Field(4, ge=1)
    num_kv_heads: int = Field(2, ge=1)
    max_positions: int = Field(2048, ge=64)

    @property
    def num_heads(self) -> int:
        return self.hidden_size // 32


def resolve_model(path: str) -> str:
    """The folder behind a short name or a path; anything that looks like a hub id passes.

    Raises:
        ConfigError: a shipped model whose files are missing, a folder without `config.json`, or
            a path that does not exist.
    """
    names = named_models()
    if path in names:
        return str(_checked_folder(names[path], path))
    folder = Path(path).expanduser()
    if folder.is_file():
        what = _GGUF if folder.suffix == ".gguf" else _FILE
        raise ConfigError(f"{path!r} is {what}")
    if folder.is_dir():
        return str(_checked_folder(folder, path))
    looks_like_hub_id = path.count("/") == 1 and not path.startswith((".", "/", "~"))
    if looks_like_hub_id and not folder.parent.exists():
        return path
    if path in FETCHABLE:
        raise ConfigError(
            f"the model {path!r} is not on this disk yet: run `echoscope models get {path}`"
        )
    raise ConfigError(f"no model folder {path!r}{did_you_mean(path, {*names, *FETCHABLE})}")


def check_weights(model: str) -> None:
    """Refuse a folder whose weights cannot be trained, before anything of it is loaded.

    Nothing is checked of a model that is not a folder on this disk: loading it tells.

    Raises:
        ConfigError: quantised weights, pickled ones, none at all, or a part that is missing.
    """
    folder = Path(model)
    if not folder.is_dir():
        return
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{model!r} holds adapters beside a model (adapter_config.json); move them to a folder "
            "of their own, and merge them with `echoscope sft merge` if they are to count"
        )
    quantised = json_object(folder / "config.json").get("quantization_config")
    if quantised is not None:
        kind = quantised.get("quant_method") if isinstance(quantised, dict) else None
        raise ConfigError(
            f"{model!r} holds quantised weights ({kind or 'quantization_config'} in config.json), "
            "which cannot be trained; name the model that they were quantised from"
        )
    missing = sorted(name for name in _shards_of(folder) if not (folder / name).is_file())
    if missing:
        raise ConfigError(
            f"{model!r} lacks {missing[0]}, which its model.safetensors.index.json names; copy the "
            "folder again"
        )
    if any(folder.glob("*.safetensors")):
        return
    if any(folder.glob("*.gguf")):
        raise ConfigError(f"{model!r} holds {_GGUF}")
    for pattern in _PICKLES:
        for file in sorted(folder.glob(pattern)):
            raise ConfigError(
                f"{model!r} holds pickled weights ({file.name}), which may run code when they are "
                'opened; where you trust them, save them as safetensors: `python -c "from '
                "transformers import AutoModelForCausalLM as M; "
                "M.from_pretrained('IN').save_pretrained('OUT')\"`"
            )
    raise ConfigError(f"{model!r} has no weights: there is no .safetensors file in it")


_GGUF = (
    "a GGUF file, which is made for sampling and cannot be trained; name the folder with the "
    "safetensors that it was converted from"
)
_FILE = "a file; name the folder that holds config.json, weights and tokenizer"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def json_object(path: Path) -> dict[str, Any]:
    """The object in a file; empty where there is none: loading the model says why."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _shards_of(folder: Path) -> set[str]:
    """The files of weights that an index names; none without a readable index."""
    names = json_object(folder / "model.safetensors.index.json").get("weight_map")
    return set(map(str, names.values())) if isinstance(names, dict) else set()


def positions_of(model: str) -> int | None:
    """Longest sequence that the `config.json` of a resolved model states; None if it states none.

    None as well for a model that is not a folder on this disk: loading it tells.
    """
    config = json_object(Path(model) / "config.json")
    text = config.get("text_config", config)  # a vision-language model has one for each
    positions = text.get("max_position_embeddings") if isinstance(text, dict) else None
    return positions if isinstance(positions, int) else None


def _checked_folder(folder: Path, name: str) -> Path:
    if (folder / "config.json").is_file():
        return folder
    if (folder / "adapter_config.json").is_file():
        raise ConfigError(
            f"{name!r} holds LoRA adapters without their base model; merge them with `echoscope "
            f"sft merge {name} -o MERGED` and name the merged folder"
        )
    if any(folder.glob("*.gguf")):
        raise ConfigError(f"{name!r} holds {_GGUF}")
    raise ConfigError(
        f"{name!r} has no config.json, so it is not a model folder"
        + (f"; `{_MAKES[name]}` makes it" if name in SHIPPED else "")
    )


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer: any bytes encode, and tags and control words are single tokens.

    `vocab_size` counts everything; short texts may give fewer tokens. Deterministic.
    """
    split_like_qwen2 = Qwen2Tokenizer().backend_tokenizer
    backend = Tokenizer(models.BPE())
    backend.normalizer = split_like_qwen2.normalizer
    backend.pre_tokenizer = split_like_qwen2.pre_tokenizer
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAG_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=list(CONTROL_TOKENS),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    backend.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in TAG_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def create_policy(
    tokenizer: PreTrainedTokenizerFast, shape: PolicyShape, *, seed: int
) -> Qwen2ForCausalLM:
    """An untrained policy in float32; the same seed gives the same weights."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        max_position_embeddings=shape.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):  # transformers initialises from torch's global state
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that every loader agrees on its class.

    The chat template goes into `tokenizer_config.json`, where older readers look for it as well.
    """
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # The class that transformers writes is its private backend; other programs know this one.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # Said in so many words, or `AutoTokenizer` adds Qwen2's own unknown token as one id more.
    config.setdefault("unk_token", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
