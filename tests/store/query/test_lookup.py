"""Rows of one step, read once: what is kept, and for how long."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from made_run import make_run

from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.query import lookup
from echoscope.store.query.lookup import StepLookup


@pytest.fixture
def packed(tmp_path: Path) -> RunIndex:
    """Steps 0 to 2 with four trajectories each, in one pack."""
    path = make_run(tmp_path / "a", 3)
    pack(path)
    return RunIndex(path)


def ids(found: StepLookup, index: RunIndex, step: int) -> list[str]:
    rows = found.rows(index.layout.root, "trajectories", index.files("trajectories"), step)
    return [str(one) for one in rows.column("id").to_pylist()]


def test_rows_of_a_step_and_of_none(packed: RunIndex) -> None:
    found = StepLookup()
    assert ids(found, packed, 1) == [f"t00000001-{n:05d}" for n in range(4)]
    assert ids(found, packed, 9) == []


def test_a_step_is_read_once(packed: RunIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    found = StepLookup()
    first = ids(found, packed, 1)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read again")

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    assert ids(found, packed, 1) == first
    with pytest.raises(AssertionError, match="read again"):
        ids(found, packed, 2)


@pytest.mark.parametrize("bound", ["_MAX_TABLES", "_MAX_BYTES"])
def test_what_is_kept_is_bounded(
    bound: str, packed: RunIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = StepLookup()
    one = found.rows(packed.layout.root, "trajectories", packed.files("trajectories"), 0).nbytes
    monkeypatch.setattr(lookup, bound, 1 if bound == "_MAX_TABLES" else int(1.5 * one))
    for step in (0, 1, 2, 0):
        assert len(ids(found, packed, step)) == 4
        assert len(found._kept) == 1
        assert found._num_bytes == sum(table.nbytes for table in found._kept.values())
