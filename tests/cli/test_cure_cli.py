"""`echoscope cure`: treatments are compared as branches; the run itself is never touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from collapsed_bandit import collapsed_bandit
from ending import ENDS
from whole_files import contents

from echoscope.diagnostics.tools.curing import CureError, cure_of, promote, proposed
from echoscope.store.errors import RunBusyError, StoreError
from echoscope.store.reader import open_run
from echoscope.store.steer.cures import Arm, Cure, cure_file, curing, read_cure, write_cure

Type = Callable[..., Any]


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collapsed_bandit(tmp_path_factory.mktemp("collapsed") / "lost")


@pytest.fixture
def lost(collapsed: Path, tmp_path: Path) -> Path:
    """A root of its own."""
    shutil.copytree(collapsed, tmp_path / "lost")
    return tmp_path / "lost"


def test_a_dry_run_says_what_would_be_tried(lost: Path, type_command: Type) -> None:
    answer = type_command("cure", str(lost), "--dry-run", "--json")
    rows = json.loads(answer.out)["arms"]
    assert [row["number"] for row in rows] == list(range(len(rows)))
    assert rows[0]["run_id"] == "lost"
    assert rows[1]["settings"].keys() == {"optim.lr"}
    assert rows[1]["settings"]["optim.lr"] < 2e-3  # below the rate at which success was best
    assert {row["run_id"] for row in rows[1:]} == {""}
    assert read_cure(lost) is None


def test_a_run_that_is_not_collapsing_is_not_cured(
    make_config: Callable[..., Any], tmp_path: Path, type_command: Type
) -> None:
    from echoscope.core.run.launch import start
    from echoscope.core.run.observers import SilentEvents

    start(make_config("steps=1"), tmp_path / "run", SilentEvents())
    answer = type_command("cure", str(tmp_path / "run"), "--dry-run")
    assert answer.code == 1
    assert (
        answer.err == "error: run: No collapse to cure: the run's state is insufficient evidence.\n"
    )


def test_two_people_are_told_of_each_other(lost: Path) -> None:
    cure_file(lost).parent.mkdir()
    write_cure(lost, cure_of(lost, proposed(open_run(lost)), by="ada", steps=4))
    with curing(lost), pytest.raises(RunBusyError, match="ada is curing lost now"), curing(lost):
        pass


def test_one_successor_is_chosen(lost: Path) -> None:
    cure = cure_of(lost, proposed(open_run(lost)), by="ada", steps=4)
    cure_file(lost).parent.mkdir()
    for index, name in enumerate(("one", "two")):
        shutil.copytree(lost, lost.with_name(name))
        cure = cure.with_arm(index, run_id=name)
    chosen = promote(lost, cure, cure.arms[0], by="ada")
    assert read_cure(lost) == chosen
    with pytest.raises(CureError, match="ada chose one before"):
        promote(lost, chosen, cure.arms[1], by="bob")


@pytest.mark.parametrize("text", ["{}", "[]", "{", '{"run_id": 1, "arms": [{}]}'])
def test_a_damaged_record_is_said_in_one_line(lost: Path, text: str) -> None:
    cure_file(lost).parent.mkdir()
    cure_file(lost).write_text(text, encoding="utf-8")
    with pytest.raises(StoreError, match=r"\.cures"):
        read_cure(lost)


def test_a_full_disk_keeps_the_record_of_a_cure_as_it_was(
    lost: Path, monkeypatch: pytest.MonkeyPatch, type_command: Type
) -> None:
    before = cured_by(lost, steps=4, good=GOOD)

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        answer = type_command("cure", lost, "--yes")
    assert answer.code == 1
    assert answer.err == (
        f"error: {cure_file(lost)}: No space left on device; the cure stands as before, and the "
        "same command goes on\n"
    )
    assert read_cure(lost) == before
    assert {path.name for path in cure_file(lost).parent.iterdir()} == {"lost.json", "lost.lock"}


GOOD = {"optim.lr": 1e-4, "steps": 30}
LOSING = {"optim.lr": 5e-2, "optim.warmup_steps": 0, "steps": 60}
DYING = {"reward.shaping": [{"name": "ends", "function": "ending:where_asked"}], **GOOD}


def cured_by(run: Path, *, steps: int, **treatments: dict[str, Any]) -> Cure:
    """A cure on record that compares these treatments, by what each does."""
    arms = [
        Arm(reason=f"cure 1, treatment {number}: {why}", checkpoint=4, settings=settings, why=why)
        for number, (why, settings) in enumerate(treatments.items(), 1)
    ]
    cure = Cure(run_id=run.name, by="ada", started_at=1.0, steps=steps, arms=tuple(arms))
    cure_file(run).parent.mkdir()
    write_cure(run, cure)
    return cure


@pytest.mark.long
@pytest.mark.timeout(900)
def test_branches_that_die_cannot_begin_or_collapse_again_lose(
    lost: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENDS, "1")
    before = contents(lost)
    cured_by(lost, steps=22, dying=DYING, wrong={"optim.lr": -1}, losing=LOSING, good=GOOD)
    (_, died, wrong, collapsed, good), output = rows_of_cure(lost, "--yes")
    assert died["ended"].startswith("the branch failed: SIGKILL ended its process")
    assert wrong["ended"] == "the branch failed: optim.lr is -1, but must be more than 0.0"
    assert "is critical after 1" in collapsed["ended"]
    assert collapsed["num_steps"] < 22  # it trained no further
    assert good["is_chosen"]
    for row in (died, wrong, collapsed):
        assert row["ended"] in output  # when it happened
    assert open_run(lost.with_name(collapsed["run_id"])).info().status == "stopped"
    assert open_run(lost.with_name(good["run_id"])).info().status == "finished"
    assert contents(lost) == before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_where_all_branches_fail_the_same_command_tries_them_again(
    lost: Path, monkeypatch: pytest.MonkeyPatch, type_command: Type
) -> None:
    before = contents(lost)
    cured_by(lost, steps=4, dying=DYING, wrong={"optim.lr": -1})
    with monkeypatch.context() as patch:
        patch.setenv(ENDS, "1")
        answer = type_command("cure", lost, "--yes")
    assert answer.code == 1
    assert answer.err == (
        "error: lost: all branches failed, the first because: SIGKILL ended its process, as the "
        "system does where memory runs out. Put that right; the same command tries them again\n"
    )
    answer = type_command("cure", lost, "--yes")
    assert answer.code == 0, answer.err
    cure = read_cure(lost)
    assert cure is not None
    assert cure.chosen == cure.arms[0].run_id
    assert contents(lost) == before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_where_the_minutes_are_over_none_is_chosen_and_the_same_command_goes_on(
    lost: Path, type_command: Type
) -> None:
    """A branch of few steps still has the success of the checkpoint that it began from."""
    before = contents(lost)
    cured_by(lost, steps=8, good=GOOD, other={**GOOD, "optim.lr": 2e-4})
    answer = type_command("cure", lost, "--yes", "--minutes", "0.1")
    assert answer.code == 3, answer.err
    assert "not every branch has trained its 8 steps. The same command goes on" in answer.out
    begun_before = branches(lost)
    assert len(begun_before) == 1
    rows, _ = rows_of_cure(lost, "--yes")
    assert [row["run_id"] for row in rows if row["run_id"] in begun_before] == begun_before
    assert [row["num_steps"] >= 8 for row in rows[1:]] == [True, True]
    assert contents(lost) == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """It has room for two checkpoints of the run, and not for those of a branch."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=30m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_branch_on_a_full_disk_goes_on_once_there_is_room(
    collapsed: Path, small_disk: Path, type_command: Type
) -> None:
    lost = small_disk / "lost"
    others = shutil.ignore_patterns("step_00000[0-35-9]", "step_00001*")
    shutil.copytree(collapsed, lost, ignore=others)
    before = contents(lost)
    cured_by(lost, steps=4, good=GOOD)
    answer = type_command("cure", lost, "--yes")
    assert answer.code == 1
    assert answer.err.startswith("error: ")
    assert "No space left on device" in answer.err
    assert len(answer.err.splitlines()) == 1
    begun_before = branches(lost)
    subprocess.run(["mount", "-o", "remount,size=900m", str(small_disk)], check=True)
    answer = type_command("cure", lost, "--yes")
    assert answer.code == 0, answer.err
    cure = read_cure(lost)
    assert cure is not None
    assert [cure.chosen] == branches(lost)
    assert begun_before in ([], branches(lost))
    assert contents(lost) == before


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_and_begun_again_it_ends_with_a_successor(lost: Path, type_command: Type) -> None:
    """The untreated run stays bit for bit as it was, and no branch is begun twice."""
    before = contents(lost)
    arguments = ("cure", str(lost), "--steps", "6", "--minutes", "10", "--yes")
    first = subprocess.Popen([sys.executable, "-P", "-m", "echoscope", *arguments])
    while (begun_now := read_cure(lost)) is None or not branches(lost):
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    arms = begun_now.arms
    rows, _ = rows_of_cure(lost, *arguments[2:])
    (chosen,) = [row for row in rows if row["is_chosen"]]
    assert chosen["success"] >= 0.6
    assert not any("failed" in row["ended"] for row in rows)  # what the kill left is not in the way
    assert open_run(lost.with_name(chosen["run_id"])).info().status == "finished"
    assert contents(lost) == before
    assert len(branches(lost)) <= len(arms)


def rows_of_cure(run: Path, *arguments: str) -> tuple[list[dict[str, Any]], str]:
    """What a cure of a process of its own says of each treatment, and its error stream."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "echoscope", "cure", str(run), *arguments, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout.splitlines()[0])["arms"], done.stderr


def branches(run: Path) -> list[str]:
    return [path.parent.name for path in run.parent.glob("*/run.json") if path.parent != run]
