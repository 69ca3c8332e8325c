"""A folder of the user's own is checked before it gets a name: one sentence says what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from echoscope.core.config.loading import ConfigError
from echoscope.core.pretrained.checks import check_folder
from echoscope.core.rollout.chat import ChatFormatError
from echoscope.store.models import shipped_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(shipped_folder("tiny"), tmp_path / "mine"))


def edit(path: Path, change: Callable[[dict], None]) -> None:  # type: ignore[type-arg]
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def halve_the_embeddings(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name][:300].contiguous()
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def triple_the_embeddings(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights[name] = weights[name].repeat(3, 1)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def with_tokenizer(text: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(text)

    return change


def without_template(folder: Path) -> None:
    edit(folder / "tokenizer_config.json", lambda values: values.pop("chat_template"))
    (folder / "chat_template.jinja").unlink(missing_ok=True)


def cut_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def test_the_shipped_folder_passes(folder: Path) -> None:
    check_folder(folder)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (with_tokenizer("{"), "cannot load a tokenizer from"),
        (with_tokenizer("{}"), "cannot load a tokenizer from"),
        (with_tokenizer('{"model": 3}'), "cannot load a tokenizer from"),
        (with_tokenizer(""), "cannot load a tokenizer from"),
        (lambda f: (f / "tokenizer.json").unlink(), "it has no tokenizer.json"),
        (without_template, "the tokenizer has no chat template"),
        (halve_the_embeddings, "the tokenizer belongs to another model"),
        (triple_the_embeddings, "more than twice as many: the tokenizer belongs to another model"),
        (cut_weights, "cannot be read as weights"),
        (lambda f: (f / "model.safetensors").unlink(), "has no weights"),
    ],
    ids=[
        "cut tokenizer",
        "empty tokenizer",
        "odd tokenizer",
        "blank tokenizer",
        "no tokenizer",
        "no template",
        "larger vocabulary",
        "smaller vocabulary",
        "cut weights",
        "no weights",
    ],
)
def test_a_folder_that_could_not_train_is_refused_in_one_sentence(
    folder: Path, damage: Callable[[Path], None], words: str
) -> None:
    damage(folder)
    with pytest.raises((ConfigError, ChatFormatError), match=words) as caught:
        check_folder(folder)
    assert "\n" not in str(caught.value)
