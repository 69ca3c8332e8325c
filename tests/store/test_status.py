"""How a run stands: one word for every page and command."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.store.reader import CommandState, open_run, open_runs
from echoscope.store.records import Command, CommandAck, CommandAction, CommandOutcome
from echoscope.store.status import (
    Origin,
    RunStatus,
    Status,
    origin_of,
    pace_of,
    status_of,
    trainer_name,
)
from echoscope.store.steer.commands import new_command, post

NOW = 10_000.0


def asked(
    action: str,
    *,
    is_applied: bool = True,
    attempt: int = 1,
    by: str = "root",
    reason: str = "",
    issued_at: float = NOW - 720,
) -> CommandState:
    command = Command(
        command_id=f"{action}-{issued_at}",
        run_id="r",
        issued_at=issued_at,
        issued_by=by,
        action=CommandAction(action),
        reason=reason,
    )
    if not is_applied:
        return CommandState(command=command, ack=None)
    ack = CommandAck(command_id=command.command_id, step=38, outcome=CommandOutcome.APPLIED)
    return CommandState(command=command, ack=ack, attempt=attempt, answered_at=issued_at)


def judged(recorded: str, *states: CommandState, **changes: Any) -> RunStatus:
    """How a run stands that was heard of a second ago and takes two seconds a step."""
    given = {"is_starting": False, "heard_at": NOW - 1, "step_s": 2.0, "now": NOW} | changes
    return status_of(recorded, 1, states, **given)


@pytest.mark.parametrize(
    ("status", "word", "sentence"),
    [
        (judged("running"), "live", "live"),
        (
            judged("running", asked("pause")),
            "paused",
            "paused by root for 12 min",
        ),
        (
            judged("running", asked("pause", by="alarm ECHO_TRAP"), heard_at=NOW - 720),
            "paused",
            'paused by the alarm "echo trap" for 12 min',
        ),
        (judged("running", asked("pause"), asked("resume")), "live", "live"),
        (judged("running", asked("pause", attempt=0)), "live", "live"),
        (
            judged("running", asked("pause", is_applied=False)),
            "waiting",
            "waiting for the current step, then pauses (asked by root)",
        ),
        (
            judged("running", asked("pause"), asked("stop", is_applied=False)),
            "waiting",
            "waiting for the current step, then stops (asked by root)",
        ),
        (
            judged("running", is_starting=True, heard_at=NOW - 30),
            "waiting",
            "waiting for its first step for 30 s",
        ),
        (
            RunStatus(status=Status.WAITING, since=NOW - 30, is_resumed=True),
            "waiting",
            "waiting for its next step for 30 s",
        ),
        (judged("running", heard_at=NOW - 59), "live", "live"),
        (judged("running", heard_at=NOW - 240), "stale", "stale, no news for 4 min"),
        (judged("running", heard_at=NOW - 240, step_s=30.0), "live", "live"),
        (judged("running", heard_at=NOW - 240, step_s=math.nan), "live", "live"),
        (judged("crashed", asked("pause"), heard_at=NOW - 240), "crashed", "crashed"),
        (judged("finished"), "finished", "finished"),
        (
            judged("stopped", asked("stop", reason="reward is broken")),
            "stopped",
            "stopped by root: reward is broken",
        ),
        (
            judged("stopped", asked("rewind", by="guard", reason="success dropped: treatment 1")),
            "stopped",
            "rewound by guard: success dropped",
        ),
        (
            RunStatus(status=Status.PAUSED, by="alarm LOW_SUCCESS", since=NOW - 720, asks=True),
            "paused",
            'paused by the alarm "low success" for 12 min; answer with rewind or resume',
        ),
        (
            RunStatus(status=Status.STOPPED, by="alarm LOW_SUCCESS", reason="a paragraph"),
            "stopped",
            'stopped by the alarm "low success"',
        ),
        (judged("stopped"), "stopped", "stopped"),
        (judged("of a later version"), "crashed", "crashed"),
    ],
)
def test_how_a_run_stands(status: RunStatus, word: str, sentence: str) -> None:
    assert (status.status.value, status.words(NOW)) == (word, sentence)


def test_a_crashed_trainer_is_told_from_a_silent_one_by_its_lock(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "a")
    add_steps(writer, "a", range(1, 4))
    info, later = open_run(tmp_path / "a").info(), time.time() + 3600
    held = status_of(
        info.status, 1, [], is_starting=False, heard_at=info.heard_at, step_s=1.0, now=later
    )
    writer._lock.release()  # as the system does when a process dies
    info = open_run(tmp_path / "a").info()
    gone = status_of(
        info.status, 1, [], is_starting=False, heard_at=info.heard_at, step_s=1.0, now=later
    )
    assert (held.status, gone.status) == (Status.STALE, Status.CRASHED)


def test_one_reader_and_a_reader_of_many_say_the_same(tmp_path: Path) -> None:
    make_run(tmp_path / "done")
    young = open_writer(tmp_path / "young")
    paused = open_writer(tmp_path / "paused")
    add_steps(paused, "paused", range(1, 3))
    command = new_command("paused", CommandAction.PAUSE, issued_by="ann")
    post(tmp_path / "paused", command)
    ack = CommandAck(command_id=command.command_id, step=3, outcome=CommandOutcome.APPLIED)
    paused.record_acks([ack], [command])
    paused.flush()
    statuses = open_runs(tmp_path).statuses()
    assert {name: (status.status.value, status.by) for name, status in statuses.items()} == {
        "done": ("finished", ""),
        "young": ("waiting", ""),
        "paused": ("paused", "ann"),
    }
    for name, status in statuses.items():
        assert open_run(tmp_path / name).status() == status
    paused.close(status="finished")
    young.close(status="finished")


def test_the_pace_is_the_median_between_recent_steps() -> None:
    assert pace_of([0.0, 3.0, 6.0, 106.0]) == 3.0
    assert math.isnan(pace_of([5.0]))


def test_an_imported_run_is_neither_finished_nor_live() -> None:
    """Whether the training behind the files goes on is not known."""

    def status_words(recorded: str, origin: Origin) -> str:
        status = status_of(
            recorded, 1, (), is_starting=False, heard_at=0, step_s=1, now=1e6, origin=origin
        )
        return status.words(1e6)

    assert status_words("finished", Origin.IMPORTED) == "imported"
    assert status_words("running", Origin.IMPORTED) == "being imported"
    assert status_words("crashed", Origin.IMPORTED) == "crashed", "the import itself was killed"
    assert status_words("finished", Origin.RECORDED) == "finished"


def test_the_configuration_says_who_wrote_the_steps() -> None:
    imported = {"imported": {"trainer": "verl"}}
    assert (origin_of(imported), trainer_name(imported)) == (Origin.IMPORTED, "verl")
    recorded = {"recorded": True, "trainer": "TRL"}
    assert (origin_of(recorded), trainer_name(recorded)) == (Origin.RECORDED, "TRL")
    assert (origin_of({"trainer": "x"}), trainer_name({"trainer": "x"})) == (Origin.TRAINED, "")
    assert trainer_name({"imported": {"trainer": ["hostile"]}}) == ""


def test_an_evaluation_is_live_before_its_first_step() -> None:
    """Its episodes are stored as they end; its first step may come with the last of them."""
    status = status_of(
        "running",
        1,
        (),
        is_starting=True,
        heard_at=1e6,
        step_s=math.nan,
        now=1e6,
        origin=Origin.EVALUATED,
    )
    assert status.status is Status.LIVE


def test_only_an_entry_of_its_own_makes_an_evaluation() -> None:
    assert origin_of({"evaluation": {"who": "tiny"}}) is Origin.EVALUATED
    assert trainer_name({"evaluation": {"who": "tiny"}, "trainer": "x"}) == ""
    assert origin_of({"evaluation": "tiny"}) is Origin.TRAINED
