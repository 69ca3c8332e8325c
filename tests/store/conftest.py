"""Small records for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stored_steps import RUN_ID, build_metrics, build_outcome, build_trajectory, write_steps

from echoscope.store.log.journal import encode_line, read_chunk
from echoscope.store.records import StepMetrics, Trajectory, TrajectoryOutcome
from echoscope.store.writer import RunWriter


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return tmp_path / "runs" / RUN_ID


@pytest.fixture
def writer(run_path: Path) -> Iterator[RunWriter]:
    """A fresh run, closed after the test."""
    made = RunWriter.create(run_path, run_id=RUN_ID, config={"lr": 0.001}, is_packing=False)
    yield made
    made.close(status="finished")


@pytest.fixture
def trajectory() -> Callable[..., Trajectory]:
    return build_trajectory


@pytest.fixture
def outcome() -> Callable[..., TrajectoryOutcome]:
    return build_outcome


@pytest.fixture
def metrics() -> Callable[..., StepMetrics]:
    return build_metrics


@pytest.fixture
def steps() -> Callable[..., None]:
    return write_steps


@pytest.fixture
def finished_run(run_path: Path) -> Path:
    """A closed run of three steps, 0 to 2, of four trajectories."""
    made = RunWriter.create(run_path, run_id=RUN_ID, config={"lr": 0.001}, is_packing=False)
    write_steps(made, range(3))
    made.close(status="finished")
    return run_path


@pytest.fixture
def crash_before_end() -> Callable[[Path, int], None]:
    """Leaves a run as a crash does that tore the journal at a byte: that end is the known one."""

    def crash(path: Path, size: int) -> None:
        journal = path / "journal.ndjson"
        journal.write_bytes(journal.read_bytes()[:size])
        tail = {"kind": "tail", "seq": len(read_chunk(journal).records)}
        (path / "journal.tail").write_bytes(encode_line(tail))

    return crash
