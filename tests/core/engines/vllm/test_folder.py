"""Shared memory holds nothing of a process that is gone."""

from __future__ import annotations

from pathlib import Path

from trainer_process import TrainerProcess, hold_shared_folder

from echoscope.core.engines.vllm.weights import SharedFolder


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
