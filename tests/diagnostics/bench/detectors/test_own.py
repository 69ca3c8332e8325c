"""Somebody's own detector: what it sees, what it may say, and how it is counted."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.bench.baselines import measure
from echoscope.diagnostics.bench.detectors.own import detector
from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.read.table import MetricTable
from echoscope.text.user_code import UserCodeError

SEEN: list[int] = []


def fallen(run: dict[str, np.ndarray]) -> bool:
    """Success below half of its best."""
    SEEN.append(len(run["step"]))
    success = run["rollout/success_rate"]
    return bool(success[-1] < success.max() / 2)


def fails(run: dict[str, np.ndarray]) -> bool:
    return bool(run["no/such_metric"][-1])


def steps(run: dict[str, np.ndarray]) -> list[int]:
    return [3]


def labelled(success: list[float], *, is_collapsed: bool = True) -> LabelledRun:
    table = MetricTable(
        steps=np.arange(1, len(success) + 1),
        columns={"rollout/success_rate": np.array(success)},
        sources={},
    )
    return LabelledRun(
        name="../a run", label="", is_collapsed=is_collapsed, counts=True, halved_step=4,
        onset_step=3, recorded_stops={}, table=table,
    )  # fmt: skip


RUN = labelled([0.4, 0.5, 0.2, 0.3, 0.1, 0.1])
"""Below half of the best at steps 3, 5 and 6."""


def test_a_function_sees_the_run_up_to_each_step_and_every_beginning_counts() -> None:
    SEEN.clear()
    assert detector(f"{__name__}:fallen")(RUN) == (3, 5)
    assert SEEN == [1, 2, 3, 4, 5, 6]
    assert measure(detector(f"{__name__}:fallen"), [RUN]).num_in_time == 1


SCRIPT = """
import csv, sys
rows = list(csv.DictReader(open(sys.argv[-1])))
values = [float(row["rollout/success_rate"]) for row in rows]
best = max(values)
for row, value in zip(rows, values):
    if value < best / 2:
        print(row["step"])
"""


def command(tmp_path: Path, script: str) -> str:
    path = tmp_path / "own detector.py"
    path.write_text(script)
    return f"{sys.executable} '{path}'"


def test_a_command_reads_a_file_and_prints_steps(tmp_path: Path) -> None:
    alert = detector(command(tmp_path, SCRIPT))
    assert alert(RUN) == (3, 5), "6 goes on with the alarm of 5"
    assert alert(labelled([0.4, 0.4, 0.5])) == ()


@pytest.mark.parametrize(
    ("script", "sentence"),
    [
        (SCRIPT, "looks ahead: from the whole of ../a run it prints step 1, but not from the rows"),
        ("print(99)", "printed step 99, but ../a run has no such step"),
        ("print('soon')", "printed something that is no step"),
        ("raise SystemExit('no file')", "ended with exit code 1 at ../a run: no file"),
    ],
)
def test_a_command_that_says_what_it_must_not_is_refused(
    tmp_path: Path, script: str, sentence: str
) -> None:
    rising = labelled([0.1, 0.2, 0.9])  # below half of a best that is still to come
    with pytest.raises(UserCodeError, match=sentence):
        detector(command(tmp_path, script))(rising)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"{__name__}:fails", "failed in line .* of test_own.py: KeyError: 'no/such_metric'"),
        (f"{__name__}:steps", r"returned \[3\] at step 1 of ../a run: it must return True where"),
        (f"{__name__}:missing", "has no function 'missing'"),
        ("no-such-command", "cannot be run .*named module:function"),
        ("'open", "is no command"),
        ("", "has no name"),
    ],
)
def test_what_is_no_detector_is_one_sentence(name: str, sentence: str) -> None:
    with pytest.raises(UserCodeError, match=sentence):
        detector(name)(RUN)
