"""`make cures` end to end on one tiny kind: killed in the middle, it goes on where it was.

The tables of docs/cures.md and the counts behind the advice are what the records give.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cures.__main__ import CURVES, advice_file, missing, wanted, write_labels

from echoscope.diagnostics.bench.cures.kinds import FURTHER, kinds, setup_of, twins
from echoscope.diagnostics.bench.cures.records import Records, TrainedPiece, has_collapsed
from echoscope.diagnostics.bench.cures.results import Results
from echoscope.diagnostics.bench.cures.tables import (
    BUILT,
    NOT_RUN,
    missing_words,
    tables,
)
from echoscope.diagnostics.judge.advice.measured import TABLE
from echoscope.diagnostics.judge.advice.treatments import PLACEBO, UNTREATED

ROOT = Path(__file__).parents[2]
KIND, SEED = "bandit-rate", 0


def test_the_page_shows_what_the_records_give() -> None:
    page = (ROOT / "docs" / "cures.md").read_text(encoding="utf-8")
    for name, grid in tables(Records()).items():
        if name in BUILT:
            continue
        table = grid.markdown() if grid.rows else NOT_RUN
        assert f"<!-- {name}: begin -->\n{table}\n<!-- {name}: end -->" in page, name
    assert missing_words(Results(Records())) in page


def test_the_advice_is_what_the_records_give() -> None:
    assert TABLE.read_text(encoding="utf-8") == advice_file(Results(Records()))


def test_the_labels_are_what_became_of_the_curves(tmp_path: Path) -> None:
    shutil.copytree(CURVES, tmp_path, dirs_exist_ok=True)
    write_labels(tmp_path)
    made, kept = (path / "labels.json" for path in (tmp_path, CURVES))
    assert made.read_text(encoding="utf-8") == kept.read_text(encoding="utf-8")


def test_records_are_of_the_kinds_as_they_are_now() -> None:
    subjects = {**kinds(), **twins()}
    stale = [
        piece.key
        for piece in Records().pieces.values()
        if piece.of not in subjects or piece.setup != setup_of(subjects[piece.of], piece.arm)
    ]
    assert stale == []


def command(folder: Path, most: int = 2) -> list[str]:
    """The untreated run of one kind with one seed, and the placebo."""
    options = ["--only", KIND, "--seeds", str(SEED), "--most", str(most)]
    places = [f"--{name}={folder / name}" for name in ("runs", "records", "curves")]
    return [sys.executable, "-u", "-m", "cures", *options, *places]


def environment() -> dict[str, str]:
    paths = [str(ROOT / "benchmarks"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}


def trained(folder: Path) -> dict[tuple[str, int, str], TrainedPiece]:
    return Records(folder / "records").pieces


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_killed_training_goes_on_and_gives_the_same_record(tmp_path: Path) -> None:
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (killed, whole):
        folder.mkdir()
    with subprocess.Popen(command(killed), env=environment()) as process:
        checkpoints = killed / "runs"
        while process.poll() is None and not any(checkpoints.glob("*/checkpoints/step_000006")):
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    assert trained(killed) == {}
    subprocess.run(command(killed), env=environment(), check=True)
    subprocess.run(command(whole, most=1), env=environment(), check=True)

    pieces = {key: replace(piece, seconds=0.0) for key, piece in trained(killed).items()}
    untreated, placebo = (pieces[(KIND, SEED, arm)] for arm in (UNTREATED, PLACEBO))
    (uninterrupted,) = trained(whole).values()
    assert untreated == replace(uninterrupted, seconds=0.0)
    assert has_collapsed(untreated)
    assert untreated.alarm is not None
    assert untreated.steps == untreated.alarm + FURTHER
    assert placebo.begins == untreated.checkpoint
    assert placebo.steps == placebo.begins + FURTHER
    assert [path.name for path in (killed / "runs").glob("*-placebo")] == []

    again = subprocess.run(
        command(killed), env=environment(), check=True, capture_output=True, text=True
    )
    assert again.stdout == ""


def test_every_kind_is_untreated_first_and_twins_come_between() -> None:
    subjects = [*kinds().values(), *twins().values()]
    tasks = [task for task in wanted(subjects, [0, 1]) if task.seed == 0]
    first = [task.arm for task in tasks[: len(kinds())]]
    assert set(first) == {UNTREATED}
    order = [(task.subject.name, task.arm) for task in tasks]
    twin, late = order.index(("bandit", UNTREATED)), order.index((KIND, "cooler"))
    assert order.index((KIND, PLACEBO)) < twin < late


def test_arms_of_a_run_that_did_not_collapse_are_not_trained(tmp_path: Path) -> None:
    kind = kinds()[KIND]
    records = Records(tmp_path)
    tasks = wanted([kind], [SEED])
    assert len(missing(tasks, records)) == 1 + len(kind.arms)
    healthy = TrainedPiece(of=KIND, seed=SEED, arm=UNTREATED, steps=60, seconds=9.0)
    records.add(replace(healthy, setup=setup_of(kind, UNTREATED)))
    assert missing(tasks, records) == []


def test_a_changed_kind_is_trained_again(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(
        TrainedPiece(of=KIND, seed=SEED, arm=UNTREATED, setup="older", steps=60, seconds=9.0)
    )
    assert missing(wanted([kinds()[KIND]], [SEED]), records)[0].arm == UNTREATED
