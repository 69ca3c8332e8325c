"""Resuming from a checkpoint: the next attempt hides what came after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from echoscope.store.log.packing import pack
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAck, CommandOutcome
from echoscope.store.steer.commands import Mailbox, new_command, post
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]
VISIBLE = "SELECT step, attempt FROM {} ORDER BY step, attempt"


def visible(path: Path, table: str, **options: bool) -> list[tuple[int, int]]:
    rows = open_run(path, **options).sql(VISIBLE.format(table)).to_pylist()
    return [(row["step"], row["attempt"]) for row in rows]


@pytest.mark.parametrize("is_packed", [False, True])
def test_views_show_the_latest_attempt_of_each_step(
    finished_run: Path, steps: Build, *, is_packed: bool
) -> None:
    if is_packed:
        pack(finished_run)
    reader = open_run(finished_run)
    with RunWriter.resume(finished_run, from_step=0, is_packing=False) as writer:
        assert (writer.attempt, writer.acknowledged_step) == (2, 0)
        # Hidden at once, before the next attempt wrote anything.
        assert reader.sql("SELECT DISTINCT step FROM turns").to_pylist() == [{"step": 0}]
        steps(writer, [1])
    for table in ("steps", "metrics"):
        rows = reader.sql(f"SELECT DISTINCT step, attempt FROM {table} ORDER BY step").to_pylist()
        assert rows == [{"step": 0, "attempt": 1}, {"step": 1, "attempt": 2}]
    assert visible(finished_run, "steps") == [(0, 1), (1, 2)]
    everything = [(0, 1), (1, 1), (1, 2), (2, 1)]
    assert visible(finished_run, "steps", all_attempts=True) == everything
    for table in ("trajectories", "turns", "tokens"):
        assert sorted(set(visible(finished_run, table))) == [(0, 1), (1, 2)]
        assert sorted(set(visible(finished_run, table, all_attempts=True))) == everything
    with pytest.raises(KeyError, match="no trajectory t00000002-00000"):
        reader.trajectory("t00000002-00000")
    if is_packed:
        pack(finished_run)
        assert visible(finished_run, "steps") == [(0, 1), (1, 2)]


def test_a_trajectory_of_two_attempts_is_the_latest(finished_run: Path, steps: Build) -> None:
    with RunWriter.resume(finished_run, from_step=-1, is_packing=False) as writer:
        steps(writer, [0], count=1)
    reader = open_run(finished_run, all_attempts=True)
    assert reader.trajectory("t00000000-00000").num_turns == 2
    assert len(reader.trajectories_of_step(0)) == 5


def test_unfinished_trajectories_vanish_with_a_rewind(
    finished_run: Path, trajectory: Build, steps: Build
) -> None:
    with RunWriter.resume(finished_run, from_step=2, is_packing=False) as writer:
        writer.add_trajectories([trajectory(3, 0)])
        writer.flush()
        assert open_run(finished_run).sql("FROM trajectories WHERE step = 3").num_rows == 1
    with RunWriter.resume(finished_run, from_step=2, is_packing=False) as writer:
        assert open_run(finished_run).sql("FROM trajectories WHERE step = 3").num_rows == 0
        steps(writer, [3])
    assert open_run(finished_run).sql("FROM trajectories WHERE step = 3").num_rows == 4


def test_unfinished_trajectories_outlive_a_rotation(
    run_path: Path, trajectory: Build, steps: Build, metrics: Build
) -> None:
    early = trajectory(1, 0)
    with RunWriter.create(
        run_path, run_id="run-1", config={}, rotate_every=1, is_packing=False
    ) as writer:
        writer.add_trajectories([early])
        writer.flush()
        steps(writer, [0])
        pack(run_path, grace_s=0)
        reader = open_run(run_path)
        assert reader.trajectory(early.id).id == early.id
        writer.commit_step(metrics=[metrics(1)])
        writer.flush()
        assert reader.listing(1).num_rows == 1


def test_trajectories_of_a_step_that_never_ended_stay_visible(
    writer: RunWriter, run_path: Path, trajectory: Build, metrics: Build
) -> None:
    writer.add_trajectories([trajectory(1, 0)])
    writer.commit_step(metrics=[metrics(2)])
    writer.flush()
    assert open_run(run_path).sql("SELECT step, kept FROM trajectories").to_pylist() == [
        {"step": 1, "kept": None}
    ]


def test_what_people_asked_for_is_never_hidden(finished_run: Path) -> None:
    command = new_command("run-1", "set", settings={"optim.lr": 0.5}, issued_by="me")
    post(finished_run, command)
    ack = CommandAck(command_id=command.command_id, step=3, outcome=CommandOutcome.APPLIED)
    with RunWriter.resume(finished_run, from_step=2, is_packing=False) as writer:
        writer.record_acks([ack])
    for is_packed in (False, True):
        if is_packed:
            pack(finished_run)
        with RunWriter.resume(finished_run, from_step=0, is_packing=False) as writer:
            # Acknowledged once, never run again.
            assert writer.seen_command_ids == {command.command_id}
            assert Mailbox(finished_run, writer.seen_command_ids).drain() == []
        (state,) = open_run(finished_run).commands()
        assert state.command == command
        assert state.ack == ack
