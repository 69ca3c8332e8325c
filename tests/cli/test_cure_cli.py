"""`echoscope cure`: treatments are compared as branches; the run itself is never touched."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from collapsed_bandit import collapsed_bandit

from echoscope.diagnostics.tools.curing import CureError, begun, promote
from echoscope.store.errors import RunBusyError, StoreError
from echoscope.store.reader import open_run
from echoscope.store.steer.cures import cure_file, curing, read_cure, write_cure

Type = Callable[..., Any]


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return collapsed_bandit(tmp_path_factory.mktemp("collapsed") / "lost")


@pytest.fixture
def lost(collapsed: Path, tmp_path: Path) -> Path:
    """A root of its own."""
    shutil.copytree(collapsed, tmp_path / "lost")
    return tmp_path / "lost"


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


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
    write_cure(lost, begun(lost, by="ada", steps=4, is_new=True))
    with curing(lost), pytest.raises(RunBusyError, match="ada is curing lost now"), curing(lost):
        pass


def test_one_successor_is_chosen(lost: Path) -> None:
    cure = begun(lost, by="ada", steps=4, is_new=True)
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


@pytest.mark.long
@pytest.mark.timeout(900)
def test_killed_and_begun_again_it_ends_with_a_successor(lost: Path, type_command: Type) -> None:
    """The untreated run stays bit for bit as it was, and no branch is begun twice."""
    before = contents(lost)
    words = ("cure", str(lost), "--steps", "6", "--minutes", "10", "--yes")
    first = subprocess.Popen([sys.executable, "-P", "-m", "echoscope", *words])
    while (begun_now := read_cure(lost)) is None or not branches(lost):
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    arms = begun_now.arms
    answer = subprocess.run(
        [sys.executable, "-P", "-m", "echoscope", *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout.splitlines()[0])["arms"]
    (chosen,) = [row for row in rows if row["is_chosen"]]
    assert chosen["success"] >= 0.6
    assert open_run(lost.with_name(chosen["run_id"])).info().status == "finished"
    assert contents(lost) == before
    assert len(branches(lost)) <= len(arms)


def branches(run: Path) -> list[str]:
    return [path.parent.name for path in run.parent.glob("*/run.json") if path.parent != run]
