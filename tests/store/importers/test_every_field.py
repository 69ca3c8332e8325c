"""Each format's fixture, record by record: every field, and nothing else.

`expected/NAME.json` says what the fixture of that name holds, worked out by hand from the file and
from the trainer's documentation. `prompt` stands for the key that is made of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.importers.registry import FORMATS

from .conftest import FIXTURES, Imported
from .whole_records import key_of, whole_records

EXPECTED = Path(__file__).parent / "expected"


def expectation(name: str) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = json.loads((EXPECTED / f"{name}.json").read_text())
    for record in records:
        record["prompt_key"] = key_of(record.pop("prompt"))
    return records


@pytest.mark.parametrize("name", sorted(path.name for path in FIXTURES.iterdir() if path.is_dir()))
def test_every_field_of_every_episode(fixture: Callable[[str], Imported], name: str) -> None:
    imported = fixture(name)
    assert whole_records(imported) == expectation(name)
    assert not imported.report.survey.refused_rows.counts, "no row of a fixture is left out"
    assert not imported.report.survey.refused_files.counts
    assert not imported.report.survey.others


def test_every_format_has_such_a_fixture() -> None:
    named = {r["format"] for path in EXPECTED.glob("*.json") for r in json.loads(path.read_text())}
    assert named == {form.name for form in FORMATS}
