"""A repair writes what can be proven to a new folder, and names what it could not prove."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.store.errors import NotARunError, RunBusyError, RunExistsError
from echoscope.store.log.layout import Layout
from echoscope.store.log.packing import pack
from echoscope.store.log.repair import repair
from echoscope.store.log.verify import verify
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


@pytest.fixture
def run(run_path: Path, steps: Build) -> Path:
    """Steps 0 and 1 in a pack, 2 to 5 in two pieces, 6 in the live one."""
    with RunWriter.create(
        run_path, run_id="run-1", config={"lr": 0.001}, rotate_every=2, is_packing=False
    ) as writer:
        steps(writer, range(2))
        pack(run_path, grace_s=0)
        steps(writer, range(2, 7))
    return run_path


def files_of(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


def steps_of(path: Path, table: str = "steps") -> list[int]:
    found = open_run(path).sql(f"SELECT DISTINCT step FROM {table} ORDER BY step")
    return [int(step) for step in found.column("step").to_pylist()]


def test_a_whole_run_is_copied_without_loss(run: Path) -> None:
    report = repair(run)
    assert (report.path, report.rebuilt, report.lost) == (run.with_name("run-1.repaired"), (), ())
    tables = ("steps", "metrics", "trajectories", "turns", "tokens")
    for table in tables:
        assert (
            open_run(run)
            .sql(f"FROM {table} ORDER BY ALL")
            .equals(open_run(report.path).sql(f"FROM {table} ORDER BY ALL"))
        )
    assert verify(report.path).problems == ()


def test_early_trajectories_that_their_step_replaced_are_not_lost(
    run_path: Path, trajectory: Build, metrics: Build
) -> None:
    with RunWriter.create(run_path, run_id="run-1", config={}, is_packing=False) as writer:
        one = trajectory(0, 0)
        writer.add_trajectories([one])
        writer.flush()  # a segment of its own, which the step replaces
        writer.commit_step(metrics=[metrics(0)], trajectories=[one])
    report = repair(run_path)
    assert (report.lost, report.num_trajectories) == ((), 1)


def test_the_damaged_run_stays_as_it_is(run: Path) -> None:
    Layout(run).piece(2).unlink()
    before = files_of(run)
    repair(run)
    assert files_of(run) == before
    assert [path.name for path in run.parent.iterdir()] != []
    assert not list(run.parent.glob("*.partial"))


def test_steps_of_a_missing_piece_come_back_from_their_segments(run: Path) -> None:
    Layout(run).piece(2).unlink()
    assert steps_of(run) == [0, 1, 4, 5, 6]
    report = repair(run)
    assert steps_of(report.path, "turns") == steps_of(report.path) == list(range(7))
    assert report.rebuilt == tuple(f"step {n} of attempt 1, from its segments" for n in (2, 3))
    assert report.lost == (
        "journal/000002.ndjson: it is missing",
        "metrics, alarms and checkpoints of step 2, attempt 1",
        "metrics, alarms and checkpoints of step 3, attempt 1",
    )
    assert open_run(report.path).metrics("policy/entropy")[0].tolist() == [0, 1, 4, 5, 6]
    row = open_run(report.path).sql("FROM steps WHERE step = 2").to_pylist()[0]
    assert (row["num_trajectories"], row["return_mean"], row["entropy"]) == (4, 1.25, None)


def test_a_repaired_run_can_be_resumed(run: Path, steps: Build) -> None:
    journal = run / "journal.ndjson"
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    report = repair(run)
    with RunWriter.resume(report.path, from_step=6, is_packing=False) as writer:
        steps(writer, [7])
    assert steps_of(report.path, "turns") == list(range(8))
    assert verify(report.path).problems == ()


def test_a_lost_manifest_is_rebuilt_from_the_packs(run: Path) -> None:
    for name in ("MANIFEST.json", "MANIFEST.copy.json"):
        (run / name).write_bytes(b"{")
    assert steps_of(run) == [2, 3, 4, 5, 6]
    report = repair(run)
    assert report.rebuilt == ("the manifest, from 1 packs",)
    assert steps_of(report.path) == steps_of(report.path, "tokens") == list(range(7))


def test_a_damaged_segment_is_left_out_and_named(run: Path) -> None:
    path = next((run / "seg" / "turns").glob("00000003-*"))
    path.write_bytes(path.read_bytes()[:-1])
    report = repair(run)
    assert [text.split(": ")[0] for text in report.lost] == ["turns of step 3, attempt 1 (8 rows)"]
    assert steps_of(report.path, "turns") == [0, 1, 2, 4, 5, 6]
    assert steps_of(report.path, "tokens") == list(range(7))


@pytest.mark.parametrize("content", [b"{", b'{"run_id": "another", "schema_version": "1.0"}'])
def test_run_json_comes_back_from_the_journal(run: Path, content: bytes) -> None:
    config = open_run(run).info().config
    (run / "run.json").write_bytes(content)
    report = repair(run)
    assert report.rebuilt == ("run.json, from the journal",)
    assert open_run(report.path).info().config == config


def test_what_repair_refuses(run: Path, tmp_path: Path) -> None:
    repair(run)
    with pytest.raises(RunExistsError, match="give another folder with --to"):
        repair(run)
    with pytest.raises(NotARunError, match=r"neither run\.json nor the journal can be read"):
        repair(tmp_path, tmp_path / "new")
    with (
        RunWriter.resume(run, from_step=6, is_packing=False),
        pytest.raises(RunBusyError, match="repair it when it has ended"),
    ):
        repair(run, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_command_says_what_is_lost(run: Path) -> None:
    Layout(run).piece(2).unlink()
    found = CliRunner().invoke(app, ["runs", "repair", str(run)])
    assert found.exit_code == 0
    assert "lost: journal/000002.ndjson: it is missing" in found.stdout
    assert "rebuilt: step 2 of attempt 1, from its segments" in found.stdout
    assert "move one of them away before you open both" in found.stdout
    again = CliRunner().invoke(app, ["runs", "repair", str(run), "--json", "--to", f"{run}-2"])
    assert '"num_trajectories": 28' in again.stdout
