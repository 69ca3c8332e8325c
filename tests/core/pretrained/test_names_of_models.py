"""Short names of models: shipped, fetched into the cache, added by the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echoscope.core.pretrained.names import (
    ModelNameError,
    add_model,
    describe,
    list_models,
    models_folder,
    named_models,
    remove_model,
)

SHIPPED = ["tiny", "tiny-puzzles"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))


def fetched(name: str) -> Path:
    folder = models_folder() / name
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    return folder


def test_without_a_cache_there_are_the_shipped_names_and_what_can_be_fetched() -> None:
    assert list(named_models()) == SHIPPED
    assert [(m.name, m.origin) for m in list_models()] == [
        *((name, "shipped") for name in SHIPPED),
        ("smollm2", "can be fetched"),
    ]


def test_a_fetched_folder_has_its_name_and_half_a_folder_has_none() -> None:
    folder = fetched("smollm2")
    (models_folder() / ".other.partial").mkdir()
    (models_folder() / ".other.partial" / "config.json").write_text("{}")
    (models_folder() / "empty").mkdir()
    assert named_models()["smollm2"].path == str(folder)
    assert list(named_models()) == [*SHIPPED, "smollm2"]
    assert describe("smollm2")["layers"] == 2


def test_a_name_is_added_and_forgotten(tmp_path: Path) -> None:
    add_model("mine", str(tmp_path))
    assert named_models()["mine"].path == str(tmp_path)
    assert add_model("mine", str(tmp_path)).origin == "added"  # again changes nothing
    remove_model("mine")
    assert "mine" not in named_models()
    assert tmp_path.is_dir()  # its files are the user's


def test_a_fetched_model_is_deleted() -> None:
    folder = fetched("smollm2")
    assert remove_model("smollm2").origin == "fetched"
    assert not folder.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../up", "is no name for a model"),
        ("UPPER", "is no name for a model"),
        ("", "is no name for a model"),
        ("tiny", "is already the name of"),
        ("smollm2", "`echoscope models get smollm2` fetches"),
    ],
)
def test_names_that_cannot_be_given(name: str, message: str) -> None:
    with pytest.raises(ModelNameError, match=message):
        add_model(name, "/somewhere")


def test_a_shipped_model_stays_and_an_unknown_one_is_said() -> None:
    with pytest.raises(ModelNameError, match="'tiny' comes with Echoscope and stays"):
        remove_model("tiny")
    with pytest.raises(ModelNameError, match="no model is called 'nobody'"):
        remove_model("nobody")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"a": 3}', '{"../b": "/x"}'])
def test_a_damaged_list_of_names_is_empty(text: str) -> None:
    models_folder().mkdir(parents=True)
    (models_folder() / "added.json").write_text(text)
    assert list(named_models()) == SHIPPED


def test_a_folder_that_says_nothing_is_described_as_that(tmp_path: Path) -> None:
    add_model("gone", str(tmp_path / "gone"))
    assert describe("gone")["state"] == "not a folder on this disk"
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "config.json").write_text(json.dumps([1]))
    add_model("bad", str(tmp_path / "bad"))
    assert describe("bad")["state"] == "no config"
