"""From a GGUF file to an ordinary model folder, with what the file says wrongly put right.

transformers reads GGUF, with three faults for this model: it stays quantised unless told
otherwise, the pre-tokenizer loses the splitting of digits, and the longest text becomes a number
without end.
"""

from __future__ import annotations

import importlib.util
import io
import json
from contextlib import redirect_stderr
from pathlib import Path

import torch
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ..config.loading import ConfigError
from ..policy_assets import save_tokenizer

_LIBRARIES = ("gguf", "accelerate")


def check_libraries() -> None:
    """Before anything is downloaded.

    Raises:
        ConfigError: a library that reads GGUF is missing.
    """
    missing = [name for name in _LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"converting the model needs {' and '.join(missing)}: "
            "in the folder of Echoscope, run pip install -e '.[pretrained]'"
        )


def convert(gguf: Path, folder: Path) -> None:
    """Write weights in bfloat16, configuration, tokenizer and chat template into `folder`."""
    with redirect_stderr(io.StringIO()):  # a bar of its own, whoever reads
        _convert(gguf, folder)


def _convert(gguf: Path, folder: Path) -> None:
    transformers_logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    save_tokenizer(_repaired(tokenizer, model.config.max_position_embeddings), folder)
    _forget_path(folder / "config.json")


def _repaired(tokenizer: PreTrainedTokenizerFast, positions: int) -> PreTrainedTokenizerFast:
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        chat_template=tokenizer.chat_template,
        model_max_length=positions,
        clean_up_tokenization_spaces=False,
    )


def _forget_path(path: Path) -> None:
    """The file's own name for itself is no path that anybody could load."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("_model_name_or_path", None)
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
