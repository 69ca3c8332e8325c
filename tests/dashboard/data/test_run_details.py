"""What the list of runs shows of a run besides its row: success over time, alarms, status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.dashboard.data.run_details import details_of, row_status
from echoscope.store.listing import RunList, RunRow
from echoscope.store.log.packing import pack
from echoscope.store.records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    CommandAck,
    CommandAction,
    CommandOutcome,
)
from echoscope.store.steer.commands import new_command


def row_of(root: Path, name: str) -> RunRow:
    return next(row for row in RunList(root).rows() if row.run_id == name)


@pytest.mark.parametrize("is_packed", [False, True])
def test_success_over_the_run_is_thinned_to_means(is_packed: bool, tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 120)
    if is_packed:
        pack(run)
    details = details_of(row_of(tmp_path, "a"))
    assert details.success == (0.5,) * 60  # two steps each
    assert not details.has_text


def alarm(name: str, step: int, severity: AlarmSeverity, state: AlarmState) -> Alarm:
    return Alarm(
        alarm_id=name,
        rule=name.upper(),
        severity=severity,
        state=state,
        step=step,
        onset_step=step,
        metric="m",
        value=0.0,
        baseline=None,
        threshold=0.0,
        window=1,
        message="",
    )


def test_the_worst_alarm_that_is_open(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(3), lambda step: {"text/echo_frac": 0.0})
    raised, cleared = AlarmState.RAISED, AlarmState.CLEARED
    writer.record_alarms(
        [
            alarm("over", 0, AlarmSeverity.CRITICAL, raised),
            alarm("over", 1, AlarmSeverity.CRITICAL, cleared),
            alarm("worst", 1, AlarmSeverity.WARNING, raised),
            alarm("latest", 2, AlarmSeverity.INFO, raised),
        ]
    )
    writer.close(status="finished")
    details = details_of(row_of(tmp_path, "a"))
    found = (details.alarm_rule, details.alarm_severity, details.alarm_step)
    assert found == ("WORST", "warning", 1)
    assert details.has_text


def test_who_stopped_it_and_why(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(2))
    stop = new_command("a", CommandAction.STOP, issued_by="ann", reason="enough")
    ack = CommandAck(command_id=stop.command_id, step=1, outcome=CommandOutcome.APPLIED)
    writer.record_acks([ack], [stop])
    writer.close(status="stopped")
    row = row_of(tmp_path, "a")
    details = details_of(row)
    stands = row_status(row, details, 0.0)
    assert (stands.by, stands.reason) == ("ann", "enough")


def test_d3_a_command_of_401_digits_changes_no_status(tmp_path: Path) -> None:
    path = make_run(tmp_path / "a", 3)
    before = row_of(tmp_path, "a")
    command = {"command_id": "c", "run_id": "a", "action": "pause", "issued_at": 10**400}
    (path / "commands").mkdir(exist_ok=True)
    (path / "commands" / "0.json").write_text(json.dumps(command))
    row = row_of(tmp_path, "a")
    assert (row.status, row.last_step, row.problem) == (before.status, before.last_step, "")
    assert row_status(row, details_of(row), 0.0).status.value == "finished"
