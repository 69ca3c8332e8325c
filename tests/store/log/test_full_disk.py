"""A disk that refuses: one clear error, nothing acknowledged lost, and the run goes on later."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.errors import StoreError, StoreWriteError
from echoscope.store.log.packing import pack
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]

_LIMITED = """
import resource, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from killed_writer import write
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
write(Path(sys.argv[1]))
"""


class Fault:
    """Lets `calls` calls of an `os` function pass and fails every later one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, calls: int) -> None:
        self.original = getattr(os, name)
        self.left = calls
        self.is_hit = False
        self.name = name
        monkeypatch.setattr(os, name, self)

    def __call__(self, descriptor: int, *data: Any) -> Any:
        self.left -= 1
        if self.left >= 0:
            return self.original(descriptor, *data)
        self.is_hit = True
        if data:  # a full disk takes what it can
            self.original(descriptor, bytes(data[0])[: len(data[0]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write(path: Path, steps: Build) -> int:
    """The last acknowledged step before the disk was full; 1 if it never was."""
    try:
        writer = RunWriter.create(path, run_id="run-1", config={}, rotate_every=1, is_packing=False)
    except StoreWriteError as error:
        assert "cannot start a run there (No space left on device)" in str(error)  # noqa: PT017
        return -1
    try:
        steps(writer, [0, 1], count=1)
        writer.close(status="finished")
    except StoreWriteError as error:
        message = str(error)
        assert f"safe up to step {writer.acknowledged_step}" in message
        assert "No space left on device" in message
        assert "\n" not in message
        with pytest.raises(StoreWriteError):
            writer.flush()
        with contextlib.suppress(StoreWriteError):
            writer.close(status="failed")
    return writer.acknowledged_step


@pytest.mark.long
@pytest.mark.parametrize("name", ["write", "fsync"])
def test_every_write_may_fail(
    tmp_path: Path, steps: Build, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Fault injection: the first call fails, then the second, and so on until none does."""
    for calls in range(100):
        path = tmp_path / f"run-{calls}"
        with monkeypatch.context() as patch:
            fault = Fault(patch, name, calls)
            acknowledged = _write(path, steps)
            if not path.exists():
                continue
            assert open_run(path).info().status in ("crashed", "finished")
        if not fault.is_hit:
            break
        reader = open_run(path)
        visible = reader.steps().column("step").to_pylist()
        # Whole steps only. A record whose fsync failed after all of it was written may be there.
        assert visible[: acknowledged + 1] == list(range(acknowledged + 1))
        assert verify(path).problems == ()
        with RunWriter.resume(path, from_step=acknowledged, is_packing=False) as again:
            steps(again, [acknowledged + 1], count=1)
        assert reader.steps().column("step").to_pylist() == list(range(acknowledged + 2))
    assert calls > 10


def test_a_limit_on_file_size(tmp_path: Path) -> None:
    """The kernel refuses for real: no file may grow past 9,500 bytes, and step 3 needs more."""
    path = tmp_path / "run"
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", _LIMITED, str(path), here, "9500"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "StoreWriteError" in ended.stderr.splitlines()[-1]
    assert "(File too large); the run is safe up to step 2" in ended.stderr.splitlines()[-1]
    assert ended.stdout.splitlines()[1:] == ["0", "1", "2"]
    assert open_run(path).steps().column("step").to_pylist() == [0, 1, 2]
    assert verify(path).problems == ()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _post_until_full(path: Path) -> None:
    for _ in range(10_000):
        post(path, new_command("run-1", "pause", reason="x" * 4000))


def test_a_full_disk(small_disk: Path, steps: Build) -> None:
    path = small_disk / "run"
    writer = RunWriter.create(path, run_id="run-1", config={}, is_packing=False)
    steps(writer, range(5))
    (small_disk / "ballast").write_bytes(b"x" * 800_000)
    with pytest.raises(StoreWriteError, match=r"writing failed \(No space left on device\)"):
        steps(writer, range(5, 100))
    with pytest.raises(StoreWriteError):
        writer.close(status="failed")
    acknowledged = writer.acknowledged_step
    assert acknowledged >= 4
    reader = open_run(path)
    assert reader.steps().column("step").to_pylist() == list(range(acknowledged + 1))
    with pytest.raises(StoreError, match="No space left"):
        _post_until_full(path)
    with pytest.raises(StoreError):
        pack(path)
    assert reader.steps().num_rows == acknowledged + 1
    (small_disk / "ballast").unlink()
    assert pack(path).num_steps == acknowledged + 1
    with RunWriter.resume(path, from_step=acknowledged, is_packing=False) as again:
        steps(again, [acknowledged + 1])
    assert reader.steps().num_rows == acknowledged + 2
