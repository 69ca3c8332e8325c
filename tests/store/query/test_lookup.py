"""Rows of one step, straight from its row group."""

from __future__ import annotations

from pathlib import Path

import pyarrow.compute as pc
import pytest
from made_run import make_run

from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """Steps 0 to 2 with four trajectories each, in one pack."""
    path = make_run(tmp_path / "a", 3)
    pack(path)
    return path


def test_rows_of_a_step_and_of_none(packed: Path) -> None:
    run = open_run(packed)
    ids = [f"t00000001-{n:05d}" for n in range(4)]
    assert run.rows_of_step("trajectories", 1).column("id").to_pylist() == ids
    assert run.rows_of_step("trajectories", 9).num_rows == 0


def test_the_footer_of_a_file_is_read_once_and_other_row_groups_not_at_all(packed: Path) -> None:
    index = RunIndex(packed)
    (file,) = index.files("trajectories")
    assert file.rows(packed, where=pc.field("step") == 1).num_rows == 4
    path = packed / file.entry.path
    content = path.read_bytes()
    footer_size = int.from_bytes(content[-8:-4], "little") + 8
    path.write_bytes(content[:-footer_size] + b"\0" * footer_size)
    assert file.rows(packed, where=pc.field("step") == 2).num_rows == 4
    half = (len(content) - footer_size) // 2  # of three row groups
    path.write_bytes(b"\0" * half + content[half:-footer_size])
    assert file.rows(packed, where=pc.field("step") == 2).num_rows == 4
