"""ctl alarms and runs note: what people and programs see and note of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from trajectories import make_trajectory

from echoscope.store.records import (
    Alarm,
    AlarmSeverity,
    AlarmState,
    Command,
    CommandAction,
    StepMetrics,
    Turn,
)
from echoscope.store.writer import RunWriter

Type = Callable[..., Any]
SPOKEN = "the \x1b[31mgoal\x1b[0m lies up"


def alarm(rule: str, step: int, **changes: Any) -> Alarm:
    fields: dict[str, Any] = {
        "alarm_id": f"{rule.lower()}-00000003",
        "rule": rule,
        "severity": AlarmSeverity.WARNING,
        "state": AlarmState.RAISED,
        "step": step,
        "onset_step": 2,
        "metric": "rollout/success_rate",
        "value": 0.25,
        "baseline": 0.75,
        "threshold": 0.375,
        "window": 5,
        "message": f"{rule} at step {step}",
        "advice": "Look.",
    }
    return Alarm(**(fields | changes))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two alarms: one is over, one became critical and names two trajectories, one of them gone."""
    path = tmp_path / "runs" / "run-1"
    spoken = make_trajectory(
        Turn(index=0, observation="o", response=SPOKEN), step=3, tag="lake", prompt_key="k"
    )
    suggested = Command(
        command_id="suggested-x",
        run_id="run-1",
        issued_at=0.0,
        issued_by="echoscope",
        action=CommandAction.SET,
        settings={"selection.strategy": "none"},
    )
    evidence = ("t00000003-00000", "t00000003-00099")
    events = {
        3: [alarm("STALLED", 3, value=math.nan), alarm("ECHO_TRAP", 3)],
        4: [
            alarm("STALLED", 4, state=AlarmState.CLEARED),
            alarm(
                "ECHO_TRAP",
                4,
                severity=AlarmSeverity.CRITICAL,
                suggested=suggested,
                evidence=evidence,
            ),
        ],
    }
    with RunWriter.create(path, run_id="run-1", config={"steps": 4}) as writer:
        for step in (3, 4):
            metrics = StepMetrics(
                run_id="run-1",
                step=step,
                phase="train",
                policy_version=0,
                wall_time=0.0,
                values={"rollout/success_rate": 0.5},
            )
            writer.commit_step(
                metrics=[metrics],
                trajectories=[spoken] if step == 3 else [],
                alarms=events[step],
            )
    return path


def test_an_ended_run_is_told_no_command(run: Path, type_command: Type) -> None:
    answer = type_command("ctl", run, "alarms", "--json")
    assert answer.code == 0
    (open_alarm,) = json.loads(answer.out)["alarms"]
    assert open_alarm == {
        "alarm_id": "echo_trap-00000003",
        "rule": "ECHO_TRAP",
        "severity": "critical",
        "state": "open",
        "step": 3,
        "severities": [
            {"severity": "warning", "since_step": 3},
            {"severity": "critical", "since_step": 4},
        ],
        "onset_step": 2,
        "cleared_step": None,
        "message": "ECHO_TRAP at step 4",
        "advice": "While the run was live, the advice was to set selection.strategy=none. The "
        "verdict says what to do now.",
        "refuted_by": "",
        "suggested": None,
        "metric": "rollout/success_rate",
        "value": 0.25,
        "baseline": 0.75,
        "threshold": 0.375,
        "evidence": ["t00000003-00000", "t00000003-00099"],
    }


def test_a_cleared_alarm_is_said_in_its_own_words_alone(run: Path, type_command: Type) -> None:
    alarms = json.loads(type_command("ctl", run, "alarms", "--all", "--json").out)["alarms"]
    assert [(row["rule"], row["state"], row["cleared_step"]) for row in alarms] == [
        ("ECHO_TRAP", "open", None),
        ("STALLED", "cleared", 4),
    ]
    assert alarms[1]["value"] is None  # strict JSON has no NaN
    lines = type_command("ctl", run, "alarms", "--all").out.splitlines()
    assert lines[0] == (
        "critical ECHO_TRAP since step 4, warning at step 3, onset 2  [echo_trap-00000003]"
    )
    assert lines[4:] == ["STALLED at step 4  [stalled-00000003]"]


def test_what_the_model_wrote_is_withheld(run: Path, type_command: Type) -> None:
    for flags in ((), ("--json",), ("--all", "--json")):
        assert "goal" not in type_command("ctl", run, "alarms", *flags).out


def test_a_quiet_run(tmp_path: Path, run: Path, type_command: Type) -> None:
    RunWriter.create(tmp_path / "quiet", run_id="quiet", config={}).close(status="finished")
    assert type_command("ctl", tmp_path / "quiet", "alarms").out == "no alarms\n"
    assert type_command("ctl", tmp_path / "none", "alarms").code == 1


def test_a_run_is_tagged_noted_and_pinned(run: Path, type_command: Type) -> None:
    assert "tags" not in type_command("runs", "list", run.parent).out
    flags = ("--tag", "baseline", "--tag", "seed 0", "--text", "the KL\nwas wrong", "--pin")
    answer = type_command("runs", "note", run, *flags)
    assert answer.out == "baseline, seed 0\nthe KL\nwas wrong\npinned\n"
    (row,) = json.loads(type_command("runs", "list", run.parent, "--json").out)
    assert (row["tags"], row["is_pinned"]) == (["baseline", "seed 0"], True)
    assert "baseline, seed 0" in type_command("runs", "list", run.parent).out
    details = json.loads(type_command("runs", "show", run, "--json").out)
    assert details["note"] == "the KL\nwas wrong"
    answer = type_command("runs", "note", run, "--untag", "baseline", "--unpin", "--json")
    assert json.loads(answer.out) == {
        "tags": ["seed 0"],
        "note": "the KL\nwas wrong",
        "is_pinned": False,
    }
    refused = type_command("runs", "note", run, "--tag", "")
    assert (refused.code, len(refused.err.splitlines())) == (1, 1)


def test_a_list_shows_runs_whose_annotations_cannot_be_read(run: Path, type_command: Type) -> None:
    (run / "annotations.ndjson").mkdir()
    answer = type_command("runs", "list", run.parent, "--json")
    assert [row["run_id"] for row in json.loads(answer.out)] == ["run-1"]
    assert "Is a directory" in answer.err
