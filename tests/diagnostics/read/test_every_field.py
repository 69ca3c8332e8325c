"""Each form of metrics file, whole: every column, value, step, name and note, and nothing else.

`expected/NAME.json` says what the fixture of that name holds, worked out by hand from the file and
from what the trainer means by its names. NaN is `null` (nothing was logged), and `"inf"` is a value
that was logged as NaN or infinite.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from echoscope.diagnostics.read.metrics_file import read_metrics
from echoscope.diagnostics.read.table import MetricTable

HERE = Path(__file__).parent
FILES = sorted(
    path
    for path in (HERE / "fixtures").rglob("*")
    if path.is_file() and path.suffix not in (".py", ".pyc")
)
COLUMNS = ("columns", "raw")


def whole(table: MetricTable) -> dict[str, Any]:
    values = {f.name: getattr(table, f.name) for f in dataclasses.fields(table)}
    del values["meaning"]  # test_run_meaning.py has it
    for name in COLUMNS:
        values[name] = {key: list(map(as_json, column)) for key, column in values[name].items()}
    for name in ("sources", "caveats"):
        values[name] = dict(values[name])
    for name in ("notes", "runs"):
        values[name] = list(values[name])
    return {**values, "steps": table.steps.tolist()}


def as_json(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return "inf" if math.isinf(value) else pytest.approx(float(value), rel=1e-9)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_field_of_every_form(path: Path) -> None:
    expected = json.loads((HERE / "expected" / f"{path.stem}.json").read_text())
    assert whole(read_metrics(path)) == expected


def test_every_expectation_has_a_file() -> None:
    named = {path.stem for path in FILES}
    assert {path.stem for path in (HERE / "expected").iterdir()} == named
