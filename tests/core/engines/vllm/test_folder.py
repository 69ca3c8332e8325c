"""Shared memory holds nothing of a process that is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from peft import LoraConfig, get_peft_model
from small_qwen import make_model
from trainer_process import TrainerProcess, hold_shared_folder

from echoscope.core.config.loading import ConfigError
from echoscope.core.engines.base import EngineError
from echoscope.core.engines.vllm import weights
from echoscope.core.engines.vllm.weights import SharedFolder, WeightFiles


def test_a_folder_of_a_killed_process_goes_and_one_of_a_living_process_stays(
    tmp_path: Path,
) -> None:
    process = TrainerProcess(tmp_path / "log", hold_shared_folder)
    process.wait_for("\n")
    path = Path(process.text.strip())
    first = SharedFolder()
    assert path.is_dir()
    process.kill()
    second = SharedFolder()
    assert not path.exists()
    assert first.path.is_dir()
    for folder in (first, second):
        folder.remove()
        assert not folder.path.exists()


def test_shared_memory_without_room_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container with Docker's default of 64 MB."""
    shared, temporary = tmp_path / "shm", tmp_path / "tmp"
    shared.mkdir()
    temporary.mkdir()
    free = {shared: 64 << 20, temporary: 10 << 30}
    monkeypatch.setattr(weights, "SHARED_MEMORY", shared)
    monkeypatch.setattr(weights.tempfile, "gettempdir", lambda: str(temporary))
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    small, large = SharedFolder(60 << 20), SharedFolder(540 << 20)
    assert (small.path.parent, large.path.parent) == (shared, temporary)
    for folder in (small, large):
        folder.remove()


def test_weights_without_room_are_one_sentence_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = make_model(0, tied=True)
    files = WeightFiles(model)
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 10))
    with (
        pytest.raises(EngineError, match=r"the weights take 1 MiB .* has 1 MiB free: .*--shm-size"),
        files.reading(model),
    ):
        pass
    monkeypatch.undo()
    with files.reading(model) as path:
        assert (path / "model.safetensors").is_file()
    files.remove()


def test_weights_are_written_once_for_all_that_read_them() -> None:
    model = make_model(0, tied=True)
    files = WeightFiles(model)
    with files.reading(model) as first, files.reading(model) as second:
        assert first == second
        files.are_loaded()
        assert first.is_dir(), "it is being read"
        with files.reading(model) as third:
            assert third != first
    assert not first.exists()
    assert third.is_dir(), "others may ask until all have loaded them"
    files.are_loaded()
    assert not third.exists()
    files.remove()


def test_adapters_stay_until_the_next_ones_are_loaded() -> None:
    model = get_peft_model(make_model(0, tied=True), LoraConfig(target_modules="all-linear"))
    files, paths = WeightFiles(model), []
    for _ in range(3):
        with files.reading(model) as path:
            paths.append(path)
        files.are_loaded()
    assert [path.is_dir() for path in paths] == [False, False, True]
    files.remove()


def test_a_shared_disk_carries_weights_and_leaves_what_others_wrote_there(tmp_path: Path) -> None:
    model = make_model(0, tied=True)
    others = tmp_path / "echoscope-engine-of-another-machine"
    others.mkdir()
    (others / "lock").touch()
    files = WeightFiles(model, str(tmp_path))
    with files.reading(model) as path:
        assert path.parent.parent == tmp_path
        assert (path / "model.safetensors").is_file()
    files.remove()
    assert list(tmp_path.iterdir()) == [others]


def test_a_shared_disk_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"engine.weights_folder is .*/missing, where nothing"):
        WeightFiles(make_model(0, tied=True), str(tmp_path / "missing"))
