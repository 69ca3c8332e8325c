"""Rows of one step, straight from its row group."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_run import make_run

from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.query.database import StepLookup


@pytest.fixture
def packed(tmp_path: Path) -> RunIndex:
    """Steps 0 to 2 with four trajectories each, in one pack."""
    path = make_run(tmp_path / "a", 3)
    pack(path)
    return RunIndex(path)


def ids(found: StepLookup, index: RunIndex, step: int) -> list[str]:
    rows = found.rows(index.layout.root, "trajectories", index.files("trajectories"), step)
    return [str(identity) for identity in rows.column("id").to_pylist()]


def test_rows_of_a_step_and_of_none(packed: RunIndex) -> None:
    found = StepLookup()
    assert ids(found, packed, 1) == [f"t00000001-{n:05d}" for n in range(4)]
    assert ids(found, packed, 9) == []


def test_the_footer_of_a_file_is_read_once(
    packed: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StepLookup()
    assert len(ids(found, packed, 1)) == 4
    monkeypatch.setattr(pq, "read_metadata", lambda path: pytest.fail("read again"))
    assert len(ids(found, packed, 2)) == 4
