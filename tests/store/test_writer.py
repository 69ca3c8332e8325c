"""RunWriter: what is acknowledged, when it is visible, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from alarm_events import alarm_event
from waiting import wait_until

from echoscope.store.errors import NotARunError, RunBusyError, RunExistsError, StoreWriteError
from echoscope.store.reader import open_run
from echoscope.store.records import (
    CheckpointRecord,
    CommandAck,
    CommandOutcome,
    DiagnosticRecord,
    Split,
    TrajectoryOutcome,
)
from echoscope.store.writer import RunWriter

Build = Callable[..., Any]


def test_a_committed_step_is_acknowledged_and_readable(
    writer: RunWriter, run_path: Path, steps: Build
) -> None:
    assert writer.acknowledged_step == -1
    steps(writer, [0, 1])
    assert writer.acknowledged_step == 1
    rows = open_run(run_path).sql(
        "SELECT step, attempt, num_trajectories, num_kept, return_mean, success_rate, "
        "num_turns_mean, num_sampled_tokens, entropy, step_s FROM steps ORDER BY step"
    )
    # Two turns of 0.5 - 0.125 + 0.25 each; two of four succeed; 4 x 2 x 3 sampled tokens.
    assert [tuple(row.values()) for row in rows.to_pylist()] == [
        (0, 1, 4, 4, 1.25, 0.5, 2.0, 24, 1.0, 2.0),
        (1, 1, 4, 4, 1.25, 0.5, 2.0, 24, 0.5, 2.0),
    ]


def test_finished_trajectories_are_visible_before_their_step_ends(
    writer: RunWriter, run_path: Path, trajectory: Build, outcome: Build, metrics: Build
) -> None:
    early = [trajectory(0, 0), trajectory(0, 1)]
    writer.add_trajectories(early)
    writer.flush()
    reader = open_run(run_path)
    assert reader.sql("SELECT id, advantage, kept FROM trajectories ORDER BY id").to_pylist() == [
        {"id": "t00000000-00000", "advantage": None, "kept": None},
        {"id": "t00000000-00001", "advantage": None, "kept": None},
    ]
    assert reader.trajectory("t00000000-00001").num_turns == 2
    assert reader.info().last_step == -1
    late = trajectory(0, 2)
    everyone = [*early, late]
    writer.commit_step(
        metrics=[metrics(0)],
        trajectories=[late],
        outcomes=[outcome(t, advantage=float(t.index)) for t in everyone],
    )
    writer.flush()
    # The final rows replaced the early ones: each trajectory once, none half-built.
    assert reader.sql("SELECT id, advantage FROM trajectories ORDER BY id").to_pylist() == [
        {"id": f"t00000000-0000{index}", "advantage": float(index)} for index in range(3)
    ]
    writer.close(status="finished")
    assert len(list((run_path / "seg" / "tokens").iterdir())) == 1


def test_early_trajectories_become_visible_by_themselves(
    writer: RunWriter, run_path: Path, trajectory: Build
) -> None:
    writer.add_trajectories([trajectory(0, 0)])
    reader = open_run(run_path)
    wait_until(lambda: reader.sql("SELECT 1 FROM trajectories").num_rows == 1)
    assert writer.acknowledged_step == -1  # visible before its step


def test_early_trajectories_share_a_micro_segment_however_many_there_are(
    writer: RunWriter, run_path: Path, trajectory: Build
) -> None:
    for index in range(100):
        writer.add_trajectories([trajectory(0, index, num_turns=1)])
    writer.flush()
    assert len(list((run_path / "seg" / "trajectories").iterdir())) == 1


def test_trajectories_given_twice_count_once(
    writer: RunWriter, run_path: Path, trajectory: Build, metrics: Build
) -> None:
    written = trajectory(0, 0)
    writer.add_trajectories([written])
    writer.commit_step(metrics=[metrics(0)], trajectories=[written])
    writer.flush()
    assert open_run(run_path).sql("SELECT 1 FROM trajectories").num_rows == 1


def test_evaluation_shares_the_step_and_needs_no_outcome(
    writer: RunWriter, run_path: Path, trajectory: Build, outcome: Build, metrics: Build
) -> None:
    train, probe = trajectory(3, 0), trajectory(3, 0, split=Split.PROBE)
    writer.commit_step(
        metrics=[metrics(3), metrics(3, phase="eval", **{"eval/small/success_rate": 0.25})],
        trajectories=[train, probe],
        outcomes=[outcome(train)],
    )
    writer.flush()
    reader = open_run(run_path)
    assert reader.sql("SELECT id, kept FROM trajectories ORDER BY id").to_pylist() == [
        {"id": "p00000003-00000", "kept": None},
        {"id": "t00000003-00000", "kept": True},
    ]
    assert reader.steps().column("num_trajectories").to_pylist() == [1]
    steps, values = reader.metrics("eval/small/success_rate", phase="eval")
    assert steps.tolist() == [3]
    assert values.tolist() == [0.25]


def test_a_step_without_training_has_no_training_numbers(
    writer: RunWriter, run_path: Path, metrics: Build
) -> None:
    writer.commit_step(metrics=[metrics(0, phase="eval", **{"policy/entropy": 3.0})])
    writer.flush()
    row = open_run(run_path).steps().to_pylist()[0]
    assert (row["entropy"], row["return_mean"], row["num_trajectories"]) == (None, None, 0)


def test_nan_stays_nan_and_infinity_infinity(
    writer: RunWriter, run_path: Path, metrics: Build
) -> None:
    values = {"a": float("nan"), "b": float("inf"), "optim/grad_norm": float("-inf")}
    writer.commit_step(metrics=[metrics(0, **values)])
    writer.flush()
    reader = open_run(run_path)
    assert np.isnan(reader.metrics("a")[1]).all()
    assert reader.metrics("b")[1].tolist() == [float("inf")]
    assert reader.steps().column("grad_norm").to_pylist() == [float("-inf")]


def test_events_of_a_step_and_between_steps(
    writer: RunWriter, run_path: Path, steps: Build, metrics: Build
) -> None:
    steps(writer, [0])
    alarm = alarm_event(
        "a1",
        1,
        rule="entropy_low",
        onset_step=0,
        metric="policy/entropy",
        value=0.1,
        threshold=float("inf"),
        window=5,
        message="entropy fell",
        evidence=("t00000000-00000",),
    )
    ack = CommandAck(command_id="c1", step=1, outcome=CommandOutcome.REJECTED, detail="no")
    checkpoint = CheckpointRecord(
        step=1, path="checkpoints/step_000001", policy_version=1, num_bytes=10, wall_time=1.0
    )
    diagnostic = DiagnosticRecord(
        step=1,
        kind="cross_scores",
        arrays={"scores": np.arange(6).reshape(2, 3)},
        trajectory_ids=("t00000000-00000",),
        payload='{"n": 2}',
    )
    writer.commit_step(
        metrics=[metrics(1)],
        alarms=[alarm],
        diagnostics=[diagnostic],
    )
    deleted = CheckpointRecord(
        step=1,
        path="checkpoints/step_000001",
        policy_version=1,
        num_bytes=10,
        wall_time=2.0,
        is_deleted=True,
    )
    writer.record_checkpoint(checkpoint)
    writer.record_checkpoint(deleted)
    writer.record_alarms([alarm])
    writer.record_acks([ack])
    writer.flush()
    reader = open_run(run_path)
    assert reader.alarms() == [alarm, alarm]
    assert reader.checkpoints() == []
    assert reader.sql("SELECT count(*) n FROM checkpoints").to_pylist() == [{"n": 2}]
    assert reader.sql("SELECT outcome, detail FROM command_events").to_pylist() == [
        {"outcome": "rejected", "detail": "no"}
    ]
    (record,) = reader.diagnostics(1)
    assert record.arrays["scores"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert (record.kind, record.trajectory_ids, record.payload) == (
        "cross_scores",
        ("t00000000-00000",),
        '{"n": 2}',
    )


@pytest.mark.parametrize("kind", ["run", "file"])
def test_create_never_writes_into_something(tmp_path: Path, finished_run: Path, kind: str) -> None:
    target = finished_run
    if kind == "file":
        target = tmp_path / "other"
        target.mkdir()
        (target / "notes.txt").write_text("mine")
    with pytest.raises(RunExistsError, match="resume it"):
        RunWriter.create(target, run_id="x", config={})


def test_a_second_writer_is_refused(
    writer: RunWriter, run_path: Path, steps: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps(writer, [0])
    monkeypatch.setattr("echoscope.store.writer._LOCK_PATIENCE_S", 0.05)
    with pytest.raises(RunBusyError, match=f"process {os.getpid()}"):
        RunWriter.resume(run_path, from_step=0)


def test_resume_wants_a_run_and_a_step_it_has(tmp_path: Path, finished_run: Path) -> None:
    with pytest.raises(NotARunError, match="no such folder"):
        RunWriter.resume(tmp_path / "nowhere", from_step=0)
    with pytest.raises(ValueError, match="last acknowledged step is 2"):
        RunWriter.resume(finished_run, from_step=3)
    # The refusal let go of the lock.
    RunWriter.resume(finished_run, from_step=2).close(status="stopped")


def test_steps_go_up_and_metrics_name_one_step(
    writer: RunWriter, steps: Build, metrics: Build, trajectory: Build
) -> None:
    steps(writer, [4])
    with pytest.raises(ValueError, match="step 4 does not come after step 4"):
        writer.commit_step(metrics=[metrics(4)])
    with pytest.raises(ValueError, match="step 3 does not come after step 4"):
        writer.add_trajectories([trajectory(3, 0)])
    with pytest.raises(ValueError, match=r"steps \[5, 6\], but must be for one step"):
        writer.commit_step(metrics=[metrics(5), metrics(6)])
    with pytest.raises(ValueError, match=r"steps \[\]"):
        writer.commit_step(metrics=[])
    with pytest.raises(ValueError, match="does not belong to step 5"):
        writer.commit_step(metrics=[metrics(5)], trajectories=[trajectory(6, 0)])


def test_outcomes_must_fit_their_trajectories(
    writer: RunWriter, metrics: Build, trajectory: Build, outcome: Build
) -> None:
    written = trajectory(0, 0)
    with pytest.raises(ValueError, match="outcome of t00000000-00001, a trajectory it does not"):
        writer.commit_step(
            metrics=[metrics(0)], trajectories=[written], outcomes=[outcome(trajectory(0, 1))]
        )
    bad = TrajectoryOutcome(
        trajectory_id=written.id, advantage=1.0, kept=True, information=(np.zeros(3), np.zeros(2))
    )
    with pytest.raises(ValueError, match=r"information has lengths \[3, 2\]"):
        writer.commit_step(metrics=[metrics(0)], trajectories=[written], outcomes=[bad])
    with pytest.raises(ValueError, match="two outcomes"):
        writer.commit_step(
            metrics=[metrics(0)], trajectories=[written], outcomes=[outcome(written)] * 2
        )


def test_two_trajectories_cannot_share_an_id(writer: RunWriter, trajectory: Build) -> None:
    writer.add_trajectories([trajectory(0, 0)])
    with pytest.raises(ValueError, match="two different trajectories have the id t00000000-00000"):
        writer.add_trajectories([trajectory(0, 0)])


def test_seeds_fit_a_column(writer: RunWriter, trajectory: Build) -> None:
    with pytest.raises(ValueError, match="env_seed is 9223372036854775808"):
        writer.add_trajectories([trajectory(0, 0, env_seed=2**63)])


def test_metrics_of_another_run_are_refused(run_path: Path, metrics: Build) -> None:
    with (
        RunWriter.create(run_path, run_id="mine", config={}, is_packing=False) as writer,
        pytest.raises(ValueError, match="'run-1' do not belong to 'mine'"),
    ):
        writer.commit_step(metrics=[metrics(0)])


def test_a_closed_writer_says_so(finished_run: Path, metrics: Build) -> None:
    writer = RunWriter.resume(finished_run, from_step=2)
    with pytest.raises(ValueError, match="status is 'done'"):
        writer.close(status="done")
    writer.close(status="stopped")
    writer.close(status="stopped")
    with pytest.raises(StoreWriteError, match="the writer is closed"):
        writer.commit_step(metrics=[metrics(3)])


@pytest.mark.parametrize(
    ("error", "status"),
    [(None, "finished"), (RuntimeError, "failed"), (KeyboardInterrupt, "interrupted")],
)
def test_leaving_the_block_records_how_it_ended(
    run_path: Path, error: type[BaseException] | None, status: str
) -> None:
    made = RunWriter.create(run_path, run_id="r", config={}, is_packing=False)
    try:
        with made:
            if error is not None:
                raise error
    except (RuntimeError, KeyboardInterrupt):
        pass
    assert open_run(run_path).info().status == status
