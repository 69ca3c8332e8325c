"""Somebody's own detector, scored on the same runs by the same code as ours.

A function is asked at every step, and sees the run up to that step alone. A command sees the whole
run once; each step that it prints it must print again from the rows up to that step.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from echoscope.store.records import FloatArray64
from echoscope.text.user_code import GROUPS, UserCodeError, call, entry_points, load

from ...read.table import MetricTable
from ..harness import STEP, LabelledRun, write_csv
from .entry import Alert, begins

ALL_DIGITS = 17
"""A double is read back as it was."""
COMMAND_S = 60.0
"""A command has so long for one run."""
_FUNCTION = re.compile(r"[\w.]+:\w+")


def detector(name: str) -> Alert:
    """The detector that a name means.

    Args:
        name: `module:function`, the name of an installed one, or a command that gets the path of a
            CSV file as its last word.

    Raises:
        UserCodeError: there is none; and from the detector, where it fails or says what it must
            not.
    """
    if _FUNCTION.fullmatch(name) or name in entry_points(GROUPS["detector"]):
        return partial(asked_at_every_step, name, load("detector", name))
    try:
        command = shlex.split(name)
    except ValueError as error:
        raise UserCodeError(f"the detector {name!r} is no command: {error}") from None
    if not command:
        raise UserCodeError("the detector has no name: write module:function, or a command")
    return partial(_printed_steps, name, command)


def _upto(table: MetricTable, rows: int | None) -> MetricTable:
    """Its first rows."""
    columns = {key: values[:rows] for key, values in table.columns.items()}
    return replace(table, steps=table.steps[:rows], columns=columns)


def asked_at_every_step(
    name: str, function: Callable[[Mapping[str, FloatArray64]], Any], run: LabelledRun
) -> tuple[int, ...]:
    """The alarms of a function that sees the run up to a step, and says whether it alarms now.

    It sees the column `step` and the metrics, NaN where a step has no value.

    Raises:
        UserCodeError: it fails, or returns something else.
    """
    steps = run.table.steps
    is_alarm = np.zeros(len(steps), dtype=bool)
    for row in range(len(steps)):
        seen = _upto(run.table, row + 1)
        columns = {STEP: seen.steps.astype(np.float64), **seen.columns}
        answer = call("detector", name, function, columns)
        if not isinstance(answer, bool | np.bool_):
            raise UserCodeError(
                f"detector {name!r} returned {answer!r:.60} at step {steps[row]} of {run.name}: it "
                "must return True where it would raise an alarm now, else False"
            )
        is_alarm[row] = answer
    return begins(steps, is_alarm, 1)


def _printed_steps(name: str, command: list[str], run: LabelledRun) -> tuple[int, ...]:
    steps = run.table.steps
    alarms = sorted(_asked(name, command, run, None))
    for step in alarms:
        rows = int(np.searchsorted(steps, step, side="right"))
        if rows == 0 or steps[rows - 1] != step:
            raise UserCodeError(
                f"detector {name!r} printed step {step}, but {run.name} has no such step"
            )
        if step not in _asked(name, command, run, rows):
            raise UserCodeError(
                f"detector {name!r} looks ahead: from the whole of {run.name} it prints step "
                f"{step}, but not from the rows up to step {step}"
            )
    return begins(steps, np.isin(steps, alarms), 1)


def _asked(name: str, command: list[str], run: LabelledRun, upto: int | None) -> set[int]:
    """The steps that a command prints for the first rows of a run."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        write_csv(_upto(run.table, upto), path, ALL_DIGITS)
        try:
            done = subprocess.run(
                [*command, str(path)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UserCodeError(
                f"detector {name!r} did not end within {COMMAND_S:g} s at {run.name}"
            ) from None
        except OSError as error:
            raise UserCodeError(
                f"detector {name!r} cannot be run ({error.strerror}); a function of your own is "
                "named module:function"
            ) from None
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it printed no reason"])[-1]
        raise UserCodeError(
            f"detector {name!r} ended with exit code {done.returncode} at {run.name}: {last[:200]}"
        )
    try:
        return {int(word) for word in done.stdout.split()}
    except ValueError as error:
        raise UserCodeError(
            f"detector {name!r} printed something that is no step at {run.name}: {error}"
        ) from None
