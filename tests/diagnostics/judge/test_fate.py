"""What became of a run is said first, with the way on: crashed, paused, stopped, failed, silent."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_run import CONFIG, add_steps, make_run, open_writer

from echoscope.cli.options import Exit, FailOn, exit_code
from echoscope.diagnostics.judge.advice.actions import advise
from echoscope.diagnostics.judge.advice.fate import fate_of
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.alarms import RULES_BY_NAME, RunState
from echoscope.diagnostics.judge.claims import Fate
from echoscope.diagnostics.judge.verdict import diagnose
from echoscope.diagnostics.judge.verdict_text import AT_THE_END, in_other_words
from echoscope.store.reader import open_run
from echoscope.store.records import CheckpointRecord, CommandAck, CommandAction, CommandOutcome
from echoscope.store.steer.commands import new_command
from echoscope.store.writer import RunWriter

KNOBS = {"steps": {"type": "integer", "value": 60}}
RATE = {"rollout/success_rate": 0.5, "rollout/num_episodes": 64.0}


def healthy(step: int) -> Mapping[str, float]:
    return RATE


def ended(path: Path, status: str, num_steps: int = 11) -> Path:
    config = {**CONFIG, "steps": 60}
    return make_run(path, num_steps, status=status, config=config, live_knobs=KNOBS, values=healthy)


def with_checkpoint(path: Path, step: int) -> None:
    folder = path / "checkpoints" / f"step_{step:06d}"
    folder.mkdir(parents=True)
    (folder / "state.json").write_text("{}")


def crashed(path: Path, num_steps: int = 11) -> Path:
    """A run whose process was killed: nobody closed the journal, nobody holds the lock."""
    pid = os.fork()
    if pid == 0:
        writer = open_writer(path, config={**CONFIG, "steps": 60}, live_knobs=KNOBS)
        add_steps(writer, path.name, range(num_steps), healthy)
        os._exit(0)
    os.waitpid(pid, 0)
    return path


def steered(path: Path, action: CommandAction, by: str, reason: str = "") -> RunWriter:
    """A run that took a command after step 10, and is still written."""
    writer = open_writer(path, config={**CONFIG, "steps": 60}, live_knobs=KNOBS)
    add_steps(writer, path.name, range(11), healthy)
    command = new_command(path.name, action, issued_by=by, reason=reason)
    ack = CommandAck(command_id=command.command_id, step=11, outcome=CommandOutcome.APPLIED)
    writer.record_acks([ack], [command])
    writer.flush()
    return writer


def test_newcomer_h3_a_crashed_run_says_so_first_and_how_to_go_on(tmp_path: Path) -> None:
    path = crashed(tmp_path / "run-c")
    with_checkpoint(path, 4)
    verdict = diagnose(path)
    command = f"echoscope train --resume {path}"
    way_on = (
        "Resume the run: it goes on from the checkpoint of step 4, and plays 6 finished steps "
        "again."
    )
    fate = Fate(
        kind="crashed",
        words="The run crashed after step 10 of 60: its process ended without closing it.",
        way_on=way_on,
        command=command,
    )
    assert fate in verdict.claims
    assert verdict.text.startswith(fate.words)
    assert f"What to do: {way_on}\n  {command}" in verdict.text
    assert (verdict.actions[0].text, verdict.actions[0].command) == (way_on, command)
    assert verdict.to_json()["actions"][0]["command"] == command


def test_newcomer_h4_a_run_without_a_checkpoint_says_that_it_begins_anew(tmp_path: Path) -> None:
    fate = fate_of(open_run(crashed(tmp_path / "run-c")), "run-c")
    assert fate is not None
    assert fate.way_on == (
        "Resume the run: it goes on from the beginning, because there is no checkpoint, and plays "
        "10 finished steps again."
    )
    assert fate.command == "echoscope train --resume run-c"


def test_a_script_learns_of_a_crash_by_the_exit_code(tmp_path: Path) -> None:
    verdict = diagnose(crashed(tmp_path / "run-c"))
    assert exit_code(verdict, FailOn.COLLAPSE) is Exit.CRASHED
    earlier = diagnose(tmp_path / "run-c", at=9)  # it had not crashed by then
    assert exit_code(earlier, FailOn.COLLAPSE) is Exit.OK


def test_a_crash_before_a_verdict_is_possible_is_said_too(tmp_path: Path) -> None:
    verdict = diagnose(crashed(tmp_path / "run-c", num_steps=3))
    assert verdict.state is RunState.INSUFFICIENT
    assert verdict.text.startswith("The run crashed after step 2 of 60")
    assert verdict.actions[0].command.startswith("echoscope train --resume")


@pytest.mark.parametrize(
    ("status", "words", "way_on"),
    [
        (
            "failed",
            "The run failed after step 10 of 60: an error ended it.",
            "Put right the error that the trainer printed. Resume the run: it goes on from the "
            "checkpoint of step 10, and repeats no step.",
        ),
        (
            "interrupted",
            "The run was interrupted after step 10 of 60.",
            "Resume the run: it goes on from the checkpoint of step 10, and repeats no step.",
        ),
        (
            "stopped",
            "The run was stopped after step 10 of 60.",
            "Resume the run: it goes on from the checkpoint of step 10, and repeats no step.",
        ),
    ],
)
def test_how_a_run_ended(status: str, words: str, way_on: str, tmp_path: Path) -> None:
    path = ended(tmp_path / "r", status)
    with_checkpoint(path, 10)
    fate = fate_of(open_run(path), "r")
    assert fate is not None
    assert (fate.words, fate.way_on) == (words, way_on)


def test_a_run_that_was_trained_to_its_end_has_no_fate(tmp_path: Path) -> None:
    path = ended(tmp_path / "r", "finished")
    assert fate_of(open_run(path)) is None
    assert not any(isinstance(claim, Fate) for claim in diagnose(path).claims)


@pytest.mark.parametrize(
    ("by", "reason", "words"),
    [
        ("root", "a\nlook", "root paused the run after step 10 of 60 (WHEN): a look."),
        ("alarm LOW_SUCCESS", "long", 'The alarm "low success" paused the run after step 10 of 60'),
    ],
)
def test_newcomer_h3_a_paused_run_says_who_paused_it_and_since_when(
    by: str, reason: str, words: str, tmp_path: Path
) -> None:
    writer = steered(tmp_path / "r", CommandAction.PAUSE, by, reason)
    fate = fate_of(open_run(tmp_path / "r"), "runs/r")
    writer.close(status="finished")
    assert fate is not None
    assert fate.kind == "paused"
    at = r"\d{4}-\d\d-\d\d \d\d:\d\d"
    assert re.match(re.escape(words).replace("WHEN", at), fate.words)
    assert fate.way_on == "Let the run go on; no step is lost."
    assert fate.command == "echoscope ctl runs/r resume"
    assert fate.alarm == by.removeprefix("alarm ") * by.startswith("alarm ")


def test_which_alarm_stopped_a_run_is_said(tmp_path: Path) -> None:
    steered(tmp_path / "a", CommandAction.STOP, "alarm ECHO_TRAP").close(status="stopped")
    fate = fate_of(open_run(tmp_path / "a"))
    assert fate is not None
    assert fate.words == 'The alarm "echo trap" stopped the run after step 10 of 60.'
    assert fate.alarm == "ECHO_TRAP"


def test_a_recorded_run_goes_on_by_its_own_trainer(tmp_path: Path) -> None:
    config = {"recorded": True, "trainer": "mine"}
    path = make_run(tmp_path / "r", 5, status="failed", config=config, values=healthy)
    fate = fate_of(open_run(path))
    assert fate is not None
    assert fate.command == ""
    assert fate.way_on == "To go on, start the trainer from its own last checkpoint."


def test_a_recorded_run_whose_writer_is_silent_says_since_when(tmp_path: Path) -> None:
    path = tmp_path / "r"
    writer = open_writer(path, config={"recorded": True})
    add_steps(writer, "r", range(3), healthy)
    long_ago = time.time() - 7200
    os.utime(path / "journal.ndjson", (long_ago, long_ago))
    fate = fate_of(open_run(path))
    writer.close(status="finished")
    assert fate is not None
    assert fate.kind == "silent"
    since = time.strftime("%Y-%m-%d %H:%M", time.localtime(long_ago))
    assert fate.words == f"The run is silent: nothing has come since {since} (after step 2)."


PAUSED = Fate(kind="paused", words="p", way_on="Let it.", command="echoscope ctl r resume")


def test_a_lost_run_is_not_told_to_go_on() -> None:
    situation = Situation(kind="live", run="r", fate=PAUSED)
    rules = [RULES_BY_NAME["FORMAT_COLLAPSE"]]
    lost = advise(rules, [], [], situation, is_lost=True)
    assert [action.text for action in lost if action.text == "Let it."] == []
    assert advise(rules, [], [], situation, is_lost=False)[0].text == "Let it."


def test_what_an_alarm_paused_goes_on_only_after_its_advice() -> None:
    fate = Fate(kind="paused", words="p", way_on="Let it.", alarm="FORMAT_COLLAPSE")
    situation = Situation(kind="live", run="r", fate=fate)
    found = advise([RULES_BY_NAME["FORMAT_COLLAPSE"]], [], [], situation, is_lost=False)
    assert found[-1].text == "Let it."
    assert len(found) == 2


def test_a_checkpoint_that_a_rewind_hides_is_not_gone_on_from(tmp_path: Path) -> None:
    path = ended(tmp_path / "r", "stopped")
    for step in (4, 8, 14):  # a checkpoint of a step that the run never reported
        with_checkpoint(path, step)
    writer = RunWriter.resume(path, from_step=4)
    writer.record_checkpoint(
        CheckpointRecord(
            step=4, path="checkpoints/step_000004", policy_version=4, num_bytes=1, wall_time=0.0
        )
    )
    writer.close(status="stopped")
    fate = fate_of(open_run(path))
    assert fate is not None
    assert "the checkpoint of step 4, and repeats no step" in fate.way_on


# --- what a state is called once the run has ended


def half_lost(step: int) -> Mapping[str, float]:
    """Valid replies are lost; success falls by a third, which is no loss of half of it."""
    is_late = step >= 40
    return {
        "rollout/action_valid_frac": 0.3 if is_late else 0.95,
        "rollout/length_limited_frac": 0.7 if is_late else 0.02,
        "rollout/success_rate": 0.4 if is_late else 0.6,
        "rollout/num_episodes": 64.0,
    }


@pytest.mark.parametrize(
    "status",
    [
        "finished",
        *(pytest.param(s, marks=pytest.mark.long) for s in ("stopped", "failed", "interrupted")),
    ],
)
def test_a_run_that_has_ended_is_not_called_collapsing(tmp_path: Path, status: str) -> None:
    path = make_run(
        tmp_path / "run", 61, status=status, config=CONFIG, live_knobs=KNOBS, values=half_lost
    )
    verdict = diagnose(path)
    assert (verdict.state, verdict.to_json()["state"]) == (RunState.COLLAPSING, "collapsing")
    assert verdict.state_words == "collapsed in part"
    assert "Collapsed in part: format collapse, starting" in verdict.text
    assert "ollapsing" not in verdict.text
    assert "still falls" not in verdict.text
    # What was said while it went on stays as it was said.
    assert diagnose(path, at=55).text.startswith("Collapsing: format collapse, starting")


def test_a_run_that_goes_on_is_called_collapsing(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "run", config=CONFIG, live_knobs=KNOBS)
    add_steps(writer, "run", range(61), half_lost)
    verdict = diagnose(tmp_path / "run")
    assert verdict.state_words == "collapsing"
    assert verdict.text.startswith("Collapsing: format collapse, starting")
    writer.close(status="finished")
    assert diagnose(tmp_path / "run").state_words == "collapsed in part"


def test_what_still_falls_fell_at_the_end() -> None:
    said = "training success: 62 % (step 4) -> 20 % (step 60), and still falls; valid actions: 9 %"
    assert in_other_words(said, AT_THE_END) == (
        "training success: 62 % (step 4) -> 20 % (step 60), and still fell at the end; "
        "valid actions: 9 %"
    )
