"""Which checkpoints stay on the disk, and which one to go back to."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_run import add_steps, open_writer

from echoscope.store.checkpoints import (
    best_step,
    choose_checkpoint,
    kept_steps,
    last_good_checkpoint,
    newest_before,
    offered,
    surplus_steps,
)
from echoscope.store.query.alarms import open_alarms
from echoscope.store.reader import open_run
from echoscope.store.records import (
    REQUESTED,
    Alarm,
    AlarmSeverity,
    AlarmState,
    CheckpointRecord,
    StepMetrics,
)
from echoscope.store.writer import RunWriter

Metrics = Callable[..., StepMetrics]
STEPS = st.frozensets(st.integers(1, 300), min_size=1, max_size=30)
RATES = st.dictionaries(st.integers(0, 300), st.floats(0, 1), max_size=20)


def alarm(step: int, earliest: int, **changes: object) -> Alarm:
    fields: dict[str, object] = {
        "alarm_id": f"low_success-{step}",
        "rule": "LOW_SUCCESS",
        "severity": AlarmSeverity.CRITICAL,
        "state": AlarmState.RAISED,
        "step": step,
        "onset_step": earliest + 3,
        "metric": "eval/x/success_rate",
        "value": 0.1,
        "baseline": 0.8,
        "threshold": 0.2,
        "window": 5,
        "message": "fell",
        "earliest_onset_step": earliest,
    }
    return Alarm(**(fields | changes))  # type: ignore[arg-type]


# -- what stays on the disk ----------------------------------------------------------------------


@given(STEPS, st.integers(1, 5), RATES, st.lists(st.integers(0, 320), max_size=5), STEPS)
def test_the_kept_are_exactly_the_protected(
    steps: frozenset[int],
    keep: int,
    success: dict[int, float],
    onsets: list[int],
    requested: frozenset[int],
) -> None:
    kept = kept_steps(steps, keep=keep, success=success, onsets=onsets, requested=requested)
    assert kept <= steps
    assert set(sorted(steps)[-keep:]) <= kept
    assert requested & steps <= kept
    assert all(offered(steps, onset, success) <= kept for onset in onsets)
    best = best_step(steps, success)
    assert best is None or best in kept
    # Nothing else is kept, so the disk is bounded.
    assert len(kept) <= keep + 1 + 2 * len(onsets) + len(requested & steps)


def test_the_best_stays_beside_the_newest() -> None:
    """Of two that count by the same evaluation the newer is the best."""
    success = {20: 0.8, 60: 0.2}
    assert kept_steps([20, 40, 60, 80], keep=1, success=success, onsets=[]) == {40, 80}


@given(STEPS, st.integers(1, 5), RATES, st.integers(2, 300))
def test_the_last_healthy_checkpoint_survives_every_later_save(
    steps: frozenset[int], keep: int, success: dict[int, float], onset: int
) -> None:
    """Checkpoints come one by one while the alarm is open: the one before its onset stays."""
    disk: set[int] = set()
    healthy = newest_before(steps, onset)
    for step in sorted(steps):
        disk = set(
            kept_steps(
                disk | {step}, keep=keep, success=success, onsets=[onset] if step >= onset else []
            )
        )
    was_there = healthy is not None and healthy == max(s for s in steps if s < onset)
    assert not was_there or healthy in disk


def test_equal_success_prefers_the_newer_and_a_checkpoint_counts_by_the_last_evaluation() -> None:
    assert best_step([20, 40, 60], {20: 0.8, 40: 0.8, 60: 0.1}) == 40
    assert best_step([25, 45], {20: 0.8, 40: 0.3}) == 25
    assert best_step([10, 20], {30: 0.8}) is None
    assert best_step([10, 20], {10: float("nan")}) is None


# -- which one to go back to ---------------------------------------------------------------------


def test_the_last_good_checkpoint_is_from_before_the_onset() -> None:
    choice = choose_checkpoint([20, 40, 60], [alarm(44, 31)], {})
    assert (choice.step, choice.onset_step) == (20, 31)
    assert choice.reason.startswith("It is the newest from before step 31")


def test_evaluations_decide_between_the_onsets_of_several_alarms() -> None:
    """Entropy rose from 31 on; success was lost from 42 on: checkpoint 40 had lost some already."""
    watch = alarm(35, 31, alarm_id="entropy", severity=AlarmSeverity.WARNING)
    success = {20: 0.85, 40: 0.57}
    assert choose_checkpoint([20, 40], [watch, alarm(44, 42)], success).step == 20
    # A warning of the first steps does not take a later, better checkpoint away.
    early = alarm(5, 2, alarm_id="early", severity=AlarmSeverity.WARNING)
    assert choose_checkpoint([20, 40], [early, alarm(44, 42)], {}).step == 40


def test_a_checkpoint_counts_by_the_worse_of_the_evaluations_around_it() -> None:
    """The change is dated at step 7 at the earliest; it may have begun at step 5."""
    for after, step in ((0.2, 4), (0.48, 6)):
        choice = choose_checkpoint([0, 2, 4, 6], [alarm(12, 7)], {0: 0.4, 4: 0.5, 8: after})
        assert choice.step == step
    assert choice.reason == "It is the newest from before step 7, where the change may have begun."
    choice = choose_checkpoint([0, 2, 4, 6], [alarm(12, 7)], {0: 0.4, 4: 0.5, 8: 0.2})
    assert choice.reason.startswith("It is the newest that was evaluated before step 7, where")


@pytest.mark.parametrize("steps", [[], [40, 60]])
def test_a_run_without_a_good_checkpoint_says_so(steps: list[int]) -> None:
    choice = choose_checkpoint(steps, [alarm(44, 31)], {40: 0.5})
    assert choice.step is None
    assert choice.reason in (
        "The run has no checkpoint.",
        "No checkpoint is left from before step 31, where the change may have begun.",
    )


def test_without_an_alarm_the_newest_is_good() -> None:
    assert choose_checkpoint([20, 40], [], {20: 0.9, 40: 0.5}).step == 40


def test_notes_and_ended_alarms_are_not_open() -> None:
    raised = alarm(9, 5)
    cleared = alarm(9, 5, state=AlarmState.CLEARED)
    note = alarm(9, 5, alarm_id="converged", severity=AlarmSeverity.INFO)
    assert open_alarms([raised, note]) == [raised]
    assert open_alarms([raised, cleared]) == []


def record(step: int, reason: str = "schedule", *, is_deleted: bool = False) -> CheckpointRecord:
    return CheckpointRecord(
        step=step,
        path=f"checkpoints/step_{step:06d}",
        policy_version=step,
        num_bytes=1,
        wall_time=time.time(),
        reason=reason,
        is_deleted=is_deleted,
    )


def test_a_stored_run_names_its_last_good_checkpoint(
    run_path: Path, writer: RunWriter, metrics: Metrics
) -> None:
    for step in range(1, 7):
        writer.commit_step(
            metrics=[metrics(step, "eval", **{"eval/x/success_rate": 1 - step / 10})],
            alarms=[alarm(5, 4)] if step == 5 else [],
        )
        writer.record_checkpoint(record(step))
    writer.record_checkpoint(record(1, "keep", is_deleted=True))
    writer.flush()
    choice = last_good_checkpoint(open_run(run_path))
    assert (choice.step, choice.onset_step) == (3, 4)


def test_a_checkpoint_that_the_schedule_wrote_first_can_still_be_asked_for(
    run_path: Path, writer: RunWriter, metrics: Metrics
) -> None:
    writer.commit_step(metrics=[metrics(1)])
    for answer in (record(1), record(2), record(1, "command"), record(1, "final")):
        writer.record_checkpoint(answer)
    writer.flush()
    assert [c.step for c in open_run(run_path).checkpoints() if c.reason == REQUESTED] == [1]
    writer.record_checkpoint(record(1, "keep", is_deleted=True))
    writer.record_checkpoint(record(1))
    writer.flush()
    assert not [c for c in open_run(run_path).checkpoints() if c.reason == REQUESTED]


def test_nothing_changes_before_the_first_step() -> None:
    """What may have begun at any time leaves the weights that the run started with."""
    choice = choose_checkpoint([0, 2, 4], [alarm(5, 0)], {0: 0.5})
    assert (choice.step, choice.onset_step) == (0, 1)


def test_a_collapsed_checkpoint_is_not_the_best_because_the_healthy_one_was_not_evaluated() -> None:
    """A branch from checkpoint 2 has its first evaluation at step 5, after it has collapsed."""
    starved = alarm(12, 11, alarm_id="starved", severity=AlarmSeverity.WARNING)
    choice = choose_checkpoint([2, 4, 10], [alarm(5, 3), starved], {5: 0.0, 10: 0.0})
    assert (choice.step, choice.onset_step) == (2, 3)


def test_surplus_is_what_no_alarm_no_command_and_no_newest_protects(tmp_path: Path) -> None:
    """Of 1 to 7 `keep` leaves 7; 3 is from before the onset of an open alarm, 1 was asked for."""
    writer = open_writer(tmp_path / "run")
    add_steps(writer, "run", range(8))
    for step in range(1, 8):
        writer.record_checkpoint(
            CheckpointRecord(
                step=step,
                path=f"checkpoints/step_{step:06d}",
                policy_version=step,
                num_bytes=1,
                wall_time=float(step),
                reason="command" if step == 1 else "schedule",
            )
        )
    writer.flush()
    assert surplus_steps(writer.path, range(1, 8), keep=1) == {2, 3, 4, 5, 6}
    writer.record_alarms([alarm(6, 4)])
    writer.flush()
    assert surplus_steps(writer.path, range(1, 8), keep=1) == {2, 4, 5, 6}
    writer.close(status="finished")
