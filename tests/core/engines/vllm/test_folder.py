"""Shared memory holds nothing of a process that is gone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from small_qwen import make_model
from trainer_process import TrainerProcess, hold_shared_folder

from echoscope.core.engines.base import EngineError
from echoscope.core.engines.vllm import weights
from echoscope.core.engines.vllm.weights import SharedFolder, save_weights


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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights.shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 10))
    with pytest.raises(
        EngineError, match=r"the weights take 1 MiB .* has 1 MiB free: .*--shm-size"
    ):
        save_weights(make_model(0, tied=True), tmp_path)
    assert not (tmp_path / "weights").exists()
