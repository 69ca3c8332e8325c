"""A disk, a folder or a process fails under the recorder: the training goes on, and it shows."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.recorder import steps
from echoscope.recorder.recorder import Recorder
from echoscope.store.errors import StoreWriteError
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run

HEAD = """
import os, resource, sys, time
from pathlib import Path
from echoscope.recorder.recorder import Recorder
path = Path(sys.argv[1])
said = []

def until(is_true):
    deadline = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < deadline, said
        time.sleep(0.02)

def train(recorder, step, size=2_000):
    reply = {"role": "assistant", "content": os.urandom(size).hex()}
    recorder.episode([{"role": "user", "content": "go"}, reply], reward=1.0)
    recorder.step(step, {"loss": 1.0})
"""


def python(script: str, *arguments: Any, wrap: tuple[str, ...] = ()) -> str:
    """What a script prints; its exit status must be 0."""
    code = HEAD + textwrap.dedent(script)
    ended = subprocess.run(
        [*wrap, sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def steps_of(path: Path) -> list[int]:
    rows = open_run(path).sql("SELECT DISTINCT step FROM metrics ORDER BY step").to_pylist()
    return [row["step"] for row in rows]


FULL = """
recorder = Recorder(path, on_message=said.append)
train(recorder, 1)
assert recorder.flush()
fill()
for step in range(2, 6):
    train(recorder, step)
    assert not recorder.flush()
assert WHY in recorder.problem, recorder.problem
assert recorder.num_lost == 8, recorder.num_lost
assert sum(WHY in line for line in said) == 1, said
make_room()
recorder._steps._retry_at = 0.0  # RETRY_S seconds later
for step in range(6, 9):
    train(recorder, step)
    assert recorder.flush(), recorder.problem
assert recorder.num_lost == 8
recorder.close()
assert any("is written again, after step 1" in line for line in said), said
"""


@pytest.mark.long
def test_a_full_disk_costs_its_steps_and_no_more(tmp_path: Path) -> None:
    """A limit on the size of files stands for the disk; it needs no rights."""
    room = """
    WHY = "File too large"
    def fill(): resource.setrlimit(resource.RLIMIT_FSIZE, (500, -1))
    def make_room(): resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    """
    python(textwrap.dedent(room) + FULL, tmp_path / "run")
    assert steps_of(tmp_path / "run") == [1, 6, 7, 8]
    assert open_run(tmp_path / "run").info().status == "finished"
    assert verify(tmp_path / "run").problems == ()


IN_A_BOX = ("bwrap", "--ro-bind", "/", "/", "--dev", "/dev")


def has_boxes() -> bool:
    if shutil.which("bwrap") is None:
        return False
    return subprocess.run([*IN_A_BOX, "true"], capture_output=True, check=False).returncode == 0


needs_boxes = pytest.mark.skipif(not has_boxes(), reason="bubblewrap cannot start here")


@pytest.mark.long
@needs_boxes
def test_a_disk_without_room(tmp_path: Path) -> None:
    """A file system of 2 MB, filled while the run goes on."""
    room = """
    WHY = "No space left on device"
    ballast = path.parent / "ballast"
    def fill():
        try:
            with ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)): pass
        except OSError: pass
    def make_room(): ballast.unlink()
    """
    check = """
    from echoscope.store.reader import open_run
    rows = open_run(path).sql("SELECT DISTINCT step FROM metrics ORDER BY step").to_pylist()
    assert [row["step"] for row in rows] == [1, 6, 7, 8], rows
    """
    small = ("--size", "2000000", "--tmpfs", str(tmp_path))
    script = textwrap.dedent(room) + FULL + textwrap.dedent(check)
    python(script, tmp_path / "run", wrap=(*IN_A_BOX, *small))


@pytest.mark.long
@needs_boxes
def test_a_folder_that_may_only_be_read(tmp_path: Path) -> None:
    """A new run is refused at its start; a run that goes on trains without being recorded."""
    with Recorder(tmp_path / "run") as recorder:
        recorder.step(1, {"loss": 1.0})
    script = """
    try:
        Recorder(path.parent / "other")
    except OSError as error:
        assert "cannot start a run there (Read-only file system)" in str(error), error
    else:
        raise AssertionError
    recorder = Recorder(path, on_message=said.append)
    for step in (2, 3):
        train(recorder, step)
    assert not recorder.flush()
    assert "Read-only file system" in recorder.problem
    assert (recorder.num_lost, len(said)) == (4, 1), said
    recorder.close()
    """
    python(script, tmp_path / "run", wrap=IN_A_BOX)
    assert steps_of(tmp_path / "run") == [1]


def test_a_file_in_place_of_the_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StoreWriteError, match="cannot start a run there"):
        Recorder(tmp_path / "file" / "run")


def test_a_folder_that_is_taken_away_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "RETRY_S", 0.0)
    messages: list[str] = []
    recorder = Recorder(tmp_path / "run", on_message=messages.append)
    recorder.step(1)
    assert recorder.flush()
    shutil.rmtree(tmp_path / "run")
    for step in (2, 3, 4):
        recorder.episode([{"role": "assistant", "content": "x"}])
        recorder.step(step)
        assert not recorder.flush()
    recorder.close()
    assert recorder.num_lost == 6
    assert len(messages) == 1
    assert "No such file or directory" in messages[0] or "is gone" in messages[0]


def test_two_recorders_that_start_one_folder_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One records, the other trains on and says why; none of the two raises."""
    monkeypatch.setattr("echoscope.store.writer._LOCK_PATIENCE_S", 0.05)
    for attempt in range(5):
        path = tmp_path / f"run{attempt}"
        gate, recorders = threading.Barrier(2), []

        def start(path: Path = path, gate: threading.Barrier = gate, out: Any = recorders) -> None:
            gate.wait()
            out.append(Recorder(path, on_message=lambda text: None))

        threads = [threading.Thread(target=start) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(recorders) == 2
        for recorder in recorders:
            recorder.step(1, {"loss": 1.0})
        kept = [recorder.flush() for recorder in recorders]
        for recorder in recorders:
            recorder.close()
        assert sorted(kept) == [False, True]
        assert steps_of(path) == [1]
        (idle,) = [
            recorder for recorder, is_kept in zip(recorders, kept, strict=True) if not is_kept
        ]
        assert "RunBusyError" in idle.problem


# -- processes -----------------------------------------------------------------------------------


def in_a_worker(recorder: Recorder, pipe: Connection) -> None:
    recorder.episode([{"role": "assistant", "content": "x"}])
    recorder.step(1, {"loss": 1.0})
    is_written = recorder.flush(timeout_s=5)
    recorder.close()
    pipe.send((is_written, recorder.num_lost, recorder.problem))


def test_a_forked_worker_records_nothing_and_says_so(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", on_message=lambda text: None) as recorder:
        ours, theirs = multiprocessing.Pipe()
        fork = multiprocessing.get_context("fork")
        worker = fork.Process(target=in_a_worker, args=(recorder, theirs))
        worker.start()
        assert ours.poll(20)
        is_written, num_lost, problem = ours.recv()
        worker.join(20)
        assert worker.exitcode == 0
        assert (is_written, num_lost) == (False, 2)
        assert "was forked from the one that records" in problem
        recorder.step(1, {"loss": 2.0})
        assert recorder.flush()
        assert recorder.problem == ""
    rows = (
        open_run(tmp_path / "run").sql("SELECT value FROM metrics WHERE key = 'loss'").to_pylist()
    )
    assert [row["value"] for row in rows] == [2.0]


def test_a_recorder_is_not_sent_to_another_process(tmp_path: Path) -> None:
    with (
        Recorder(tmp_path / "run") as recorder,
        pytest.raises(TypeError, match="cannot be sent to another process; make and call it in"),
    ):
        pickle.dumps(recorder)


ENDS = {
    "os._exit": ("recorder.flush(); os._exit(0)", "crashed"),
    "SIGKILL": ("recorder.flush(); os.kill(os.getpid(), 9)", "crashed"),
    "no close": ("sys.exit(0)", "interrupted"),
    "exception": ("1 / 0", "failed"),
    "no close after all steps": ("train(recorder, 3)", "finished"),
}
"""How a trainer may end without `close`, and what its run is called then."""


@pytest.mark.long
def test_a_trainer_that_ends_without_close(tmp_path: Path) -> None:
    """Every finished step is kept, the run says how it ended, and another trainer can go on."""
    script = """
    for name, end in eval(sys.argv[2]).items():
        if os.fork() == 0:
            recorder = Recorder(path / name, total_steps=3)
            for step in (1, 2):
                train(recorder, step)
            exec(end)
            sys.exit(0)
        os.wait()
    """
    ends = {name: end for name, (end, _) in ENDS.items()}
    python(script, tmp_path, repr(ends))
    status = {name: open_run(tmp_path / name).info().status for name in ENDS}
    assert status == {name: status for name, (_, status) in ENDS.items()}
    for name in ENDS:
        assert steps_of(tmp_path / name)[:2] == [1, 2]
        with Recorder(tmp_path / name, on_message=lambda text: None) as recorder:
            recorder.step(4)
            assert recorder.flush()


# -- alarms --------------------------------------------------------------------------------------


def test_an_alarm_stops_a_run_whose_folder_takes_no_command(tmp_path: Path) -> None:
    """The step that raised it is written, and is not counted as lost."""
    messages: list[str] = []
    path = tmp_path / "run"
    recorder = Recorder(
        path, alarms={"actions": {"ENTROPY_EXPLOSION": "stop"}}, on_message=messages.append
    )
    assert recorder.flush()
    (path / "commands").rmdir()
    (path / "commands").write_text("in the way", encoding="utf-8")
    for step, values in make("entropy_explosion", 0).table.rows():
        if step:
            recorder.step(step, values)
            recorder.flush()
            if recorder._steps.commands:
                break
    recorder.obey(step)
    assert recorder.should_stop
    recorder.close()
    assert recorder.num_lost == 0
    assert any("an alarm's stop goes past the folder" in line for line in messages)
    assert steps_of(path)[-1] == step
    assert open_run(path).info().status == "stopped"


@pytest.mark.long
def test_an_alarm_on_a_full_disk_is_told_and_stops_the_run(tmp_path: Path) -> None:
    """The steps of the collapse are lost, and everybody hears of it all the same."""
    script = """
    from echoscope.diagnostics.bench.synthetic_runs import make
    recorder = Recorder(
        path, alarms={"actions": {"ENTROPY_EXPLOSION": "stop"}}, on_message=said.append,
        notify={
            "targets": ["command:exit 7"],
            "severity": "warning",
        },
    )
    rows = [(step, values) for step, values in make("entropy_explosion", 0).table.rows() if step]
    for step, values in rows:
        if step == 5:
            resource.setrlimit(resource.RLIMIT_FSIZE, (50, -1))
        recorder.step(step, values)
        recorder.flush()
        if recorder._steps.commands:
            break
    recorder.obey(step)
    assert recorder.should_stop, said
    resource.setrlimit(resource.RLIMIT_FSIZE, (-1, -1))
    recorder.close()
    assert recorder.num_lost == step - 4, (recorder.num_lost, step)
    assert any(line.startswith("warning: Entropy explosion") for line in said), said
    assert any(s.startswith("could not tell command: ended with code 7") for s in said), said
    assert any("an alarm's stop goes past the folder" in line for line in said), said
    """
    python(script, tmp_path / "run")
    assert steps_of(tmp_path / "run") == [1, 2, 3, 4]


def test_a_message_that_cannot_be_made_costs_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no words")

    recorder = Recorder(tmp_path / "run", on_message=lambda text: None)
    monkeypatch.setattr(recorder._steps._notifier, "observe", fail)
    recorder.step(1, {"loss": 1.0})
    assert not recorder.flush()
    assert recorder.problem == "cannot tell people: RuntimeError: no words"
    assert recorder.num_lost == 0
    recorder.close()
    assert steps_of(tmp_path / "run") == [1]
