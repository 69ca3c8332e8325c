"""Who may read a run: whoever the umask lets, in every file and folder of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.log.packing import pack
from echoscope.store.steer.annotations import AddTag, annotate
from echoscope.store.steer.commands import new_command, post
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


@pytest.fixture(params=[0o077, 0o027, 0o022])
def mask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_no_file_of_a_run_is_open_to_more_people_than_the_umask_says(
    run_path: Path, steps: Build, mask: int
) -> None:
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(3))
    pack(run_path)
    annotate(run_path, AddTag(author="ann", at=0.0, tag="a"))
    post(run_path, new_command("run-1", "pause"))
    for path in (run_path, *run_path.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & mask == 0, path
