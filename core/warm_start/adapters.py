"""Adapters become a model again: which base they were trained on, and folding them into it.

`echoscope sft train --lora` and a checkpoint of a run with `model.lora` both write such a folder.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors import SafetensorError, safe_open

from ..config.settings import ModelConfig
from ..policy import load_model
from ..pretrained.base import is_other_base
from ..pretrained.policy_assets import json_object, resolve_model, save_tokenizer
from ..rollout.chat import load_tokenizer
from .demonstrations import SftError

ADAPTER_FILE = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_MAX_REASON = 200


def merge_adapters(adapters: Path, out: Path) -> None:
    """Write the base model with the adapters folded into its weights, and the tokenizer.

    The weights keep the base's dtype. `out` appears whole or not at all.

    Raises:
        SftError: `adapters` holds none, or those of another base; `out` is not empty or cannot be
            written.
        ConfigError: the base model cannot be loaded.
    """
    base = _base_of(adapters)
    folder = Path(resolve_model(base))
    check_out(out)
    if is_other_base(adapters, folder):
        raise SftError(
            f"the adapters in {adapters} were trained on other weights than those of {base!r} "
            f"({folder}); bring the base back that they belong to, or train them again"
        )
    model = load_model(str(folder), ModelConfig(dtype=_dtype_of(folder), device="cpu"))
    try:
        adapted = PeftModel.from_pretrained(model, str(adapters))
        _check_layers(adapters, adapted)
        merged = adapted.merge_and_unload()
    except (
        OSError,
        ValueError,
        RuntimeError,
        KeyError,
        TypeError,
        AttributeError,
        SafetensorError,
    ) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise SftError(f"the adapters in {adapters} do not fit {base!r}: {reason}") from None
    tokenizer = load_tokenizer(adapters if (adapters / "tokenizer.json").is_file() else folder)
    partial = out.with_name(f".{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        merged.save_pretrained(partial)
        save_tokenizer(tokenizer, partial)
        if out.is_dir():
            out.rmdir()
        partial.rename(out)
    except (OSError, SafetensorError) as error:
        raise SftError(f"cannot write {out}: {' '.join(str(error).split())}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def check_out(out: Path) -> None:
    """Raises SftError where a folder to write is a file, or holds something."""
    if out.exists() and not out.is_dir():
        raise SftError(f"{out} is a file; name a folder")
    if out.is_dir() and any(out.iterdir()):
        raise SftError(f"{out} is not empty; name another folder")


def _base_of(adapters: Path) -> str:
    config = json_object(adapters / ADAPTER_FILE)
    base = config.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise SftError(
            f"{adapters} holds no adapters of `sft train --lora`: there is no {ADAPTER_FILE} in it "
            "that names a base model"
        )
    if config.get("peft_type") != "LORA":
        raise SftError(
            f"{adapters} holds adapters of the kind {config.get('peft_type')!r}; only LORA can be "
            "folded into a model"
        )
    if not (adapters / ADAPTER_WEIGHTS).is_file():
        raise SftError(f"{adapters} has no {ADAPTER_WEIGHTS}; copy the folder again")
    return base


def _check_layers(adapters: Path, adapted: PeftModel) -> None:
    """Layers that the file says nothing of would silently stay as they are."""
    expected_names = get_peft_model_state_dict(adapted, save_embedding_layers=False)
    with safe_open(adapters / ADAPTER_WEIGHTS, framework="pt") as file:
        odd = expected_names.keys() ^ set(file.keys())
    if odd:
        raise ValueError(f"the base has other layers, such as {min(odd)}")


def _dtype_of(folder: Path) -> Any:
    """The dtype of a folder's weights, where this package trains in it; else float32."""
    config = json_object(folder / "config.json")
    dtype = config.get("dtype", config.get("torch_dtype"))
    return "bfloat16" if dtype == "bfloat16" else "float32"
