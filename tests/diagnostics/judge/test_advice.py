"""What an alarm of an earlier step still advises: nothing that cannot be done, or holds already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from echoscope.core.config.loading import apply_settings, load_config
from echoscope.diagnostics.judge.advice.actions import (
    Action,
    advise,
    alarm_advice,
    checkpoint_before,
    good_checkpoint,
)
from echoscope.diagnostics.judge.advice.causes import Cause
from echoscope.diagnostics.judge.advice.situation import Situation
from echoscope.diagnostics.judge.alarms import RULES_BY_NAME, AlarmEngine
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.records import Alarm, AlarmSeverity, AlarmState, Command, CommandAction


def alarm(advice: str, wish: Command | None = None) -> Alarm:
    return Alarm(
        alarm_id="a",
        rule="ECHO_TRAP",
        severity=AlarmSeverity.WARNING,
        state=AlarmState.RAISED,
        step=3,
        onset_step=2,
        metric="m",
        value=0.0,
        baseline=None,
        threshold=0.5,
        window=1,
        message="it fell",
        advice=advice,
        suggested=wish,
    )


def wish(action: CommandAction = CommandAction.SET, **settings: Any) -> Command:
    return Command(
        command_id="suggested-a",
        run_id="r",
        issued_at=0.0,
        issued_by="echoscope",
        action=action,
        settings={key.replace("__", "."): value for key, value in settings.items()},
    )


SET = alarm("Lower it. echoscope ctl r set optim.lr=0.0001", wish(optim__lr=1e-4))
BRANCH = alarm("Go back. echoscope ctl r branch --checkpoint 2 optim.lr=0.0001")


def test_a_live_run_is_told_the_command_and_can_be_sent_it() -> None:
    found = alarm_advice(SET, run="runs/r", is_live=True, current={"optim.lr": 1e-3})
    assert (found.text, found.command) == (
        "Lower it.",
        "echoscope ctl runs/r set optim.lr=0.0001",
    )
    assert found.wish is SET.suggested


@pytest.mark.parametrize("action", [CommandAction.SET, CommandAction.STOP])
def test_an_ended_run_is_told_no_command_that_it_cannot_take(
    action: CommandAction,
) -> None:
    settings = {"optim__lr": 1e-4} if action is CommandAction.SET else {}
    text = f"Now. echoscope ctl r {action.value}"
    found = alarm_advice(alarm(text, wish(action, **settings)), run="r", is_live=False, current={})
    assert (found.command, found.wish) == ("", None)
    assert "ctl" not in found.text
    assert found.text.startswith("While the run was live, the advice was to ")


def test_what_holds_already_is_not_advised() -> None:
    found = alarm_advice(SET, run="r", is_live=True, current={"optim.lr": 1e-4})
    assert (found.text, found.command, found.wish) == (
        "The advice is followed already: optim.lr=0.0001.",
        "",
        None,
    )


@pytest.mark.parametrize("is_live", [True, False])
def test_a_branch_is_advised_as_long_as_the_alarm_is_open(is_live: bool) -> None:
    """The trainer calls the run by its name; a command needs the way to it from here."""
    found = alarm_advice(BRANCH, run="../runs/r", is_live=is_live, current={})
    command = "echoscope ctl ../runs/r branch --checkpoint 2 optim.lr=0.0001"
    assert (found.text, found.command) == ("Go back.", command)


@pytest.mark.parametrize("which", [SET, BRANCH])
def test_an_alarm_that_is_over_advises_nothing(which: Alarm) -> None:
    found = alarm_advice(which, run="r", is_live=True, current={}, is_open=False)
    assert (found.text, found.command, found.wish) == ("", "", None)


@pytest.mark.parametrize(
    ("success", "checkpoint"),
    [
        ({}, "checkpoint 20"),
        ({0: 0.17, 20: 0.75}, "checkpoint 20 (evaluation 75 %)"),
        ({8: 0.8, 20: 0.15}, "checkpoint 20 (evaluation 15 %, far below the best of 80 %)"),
    ],
)
def test_advice_says_how_good_the_checkpoint_is_and_what_changes(
    success: dict[int, float], checkpoint: str
) -> None:
    situation = Situation(
        kind="ended", config={"optim": {"lr": 0.004}}, checkpoints=(20, 40), success=success
    )
    cause = Cause(text="", refuted_by="", settings={"optim.lr": 1e-4}, why="Smaller steps help.")
    raised = replace(alarm(""), onset_step=22)
    rules = [RULES_BY_NAME["FORMAT_COLLAPSE"]]
    (action,) = advise(rules, [cause], [raised], situation, is_lost=True)
    change = "optim.lr=0.0001 (now 0.004). Smaller steps help."
    assert action.text == f"Branch from {checkpoint} with {change}"


def advised(row: Mapping[str, float], **settings: str) -> Action:
    """For a live run with these off-policy settings, after twelve steps."""
    live = {f"off_policy.{name}": value for name, value in (DEFAULTS | settings).items()}
    engine = AlarmEngine()
    engine.situation = Situation(kind="live", run="runs/a", live=live)
    for step in range(12):
        engine.observe(step, row)
    return engine.actions()[0]


DEFAULTS = {"old_logprobs": "sampler", "correction": "none", "level": "token"}
STALE = {"rollout/staleness_mean": 3.0, "policy/mismatch_kl": 0.02}


def test_samples_of_old_weights_are_weighted_by_trajectory_while_that_leaves_a_sample() -> None:
    short = advised({**STALE, "rollout/num_sampled_tokens_mean": 15.0})  # 0.3 nats
    assert short.command == (
        "echoscope ctl runs/a set off_policy.old_logprobs=trainer off_policy.correction=tis "
        "off_policy.level=sequence"
    )
    assert apply_settings(load_config("demo"), short.settings).off_policy.correction == "tis"
    long = advised({**STALE, "rollout/num_sampled_tokens_mean": 200.0})  # 4 nats
    assert long.settings["off_policy.level"] == "token"


def test_false_records_are_not_used_and_never_weighted() -> None:
    row = {"rollout/staleness_mean": 0.0, "policy/mismatch_ratio_mean": 0.951}
    action = advised(row)
    assert action.command.endswith("off_policy.old_logprobs=trainer off_policy.correction=none")
    action = advised(row, old_logprobs="trainer", correction="tis")
    assert action.command.endswith("off_policy.correction=none")
    action = advised(row, old_logprobs="trainer")
    assert action.command == ""  # what is left is the sampler's fault


def test_a_difference_that_is_weighted_already_is_left_to_the_sampler() -> None:
    row = {"rollout/staleness_mean": 0.0, "policy/mismatch_kl": 0.2}
    assert advised(row).settings["off_policy.correction"] == "tis"
    assert advised(row, old_logprobs="trainer", correction="mis").command == ""


@pytest.mark.parametrize(("command_id", "step"), [("rewind", 20), ("", None)])
def test_a_rewound_run_may_go_back_to_where_it_took_over(command_id: str, step: int | None) -> None:
    """That checkpoint was from before the collapse; a branch of a person's may be from after it."""
    origin = {"run_id": "r", "step": 20, "command_id": command_id}
    situation = Situation(config={"branched_from": origin}, checkpoints=(20, 40))
    fallen = replace(
        alarm(""), severity=AlarmSeverity.CRITICAL, step=44, onset_step=30, earliest_onset_step=12
    )
    assert good_checkpoint([fallen], situation)[0] == step


def test_where_the_critic_learned_wrongly_its_checkpoint_is_from_before_the_first_step() -> None:
    """Success after step 20 is as before, and the values are not."""
    situation = Situation(checkpoints=(0, 20, 40), success={0: 0.4, 20: 0.4, 40: 0.4})
    cause = Cause(text="", refuted_by="")
    for key, step in (("critic.lr", 0), ("loss.value_coef", 0), ("optim.lr", 40)):
        assert checkpoint_before(cause, {key: 0.1}, [], situation)[0] == step
    later = replace(cause, since=30)
    assert checkpoint_before(later, {"critic.lr": 0.1}, [], situation)[0] == 20
    gained = replace(situation, success={0: 0.4, 20: 0.8, 40: 0.8})  # with that very critic
    assert checkpoint_before(cause, {"critic.lr": 0.1}, [], gained)[0] == 40
    without = replace(situation, checkpoints=(20, 40))
    assert checkpoint_before(cause, {"critic.lr": 0.1}, [], without)[0] == 40


def test_another_trainer_is_not_told_our_settings_and_commands() -> None:
    diagnosis = Diagnosis()
    for step in range(40):
        diagnosis.observe(step, {"reward/return_mean": 0.0, "reward/group_std_mean": 0.0})
    verdict = diagnosis.verdict()
    assert verdict.text.startswith(
        "Not learning. The reward is always the same, so there is nothing to learn from."
    )
    assert verdict.actions[0].text == (
        "Read some replies and check the grader. Then show the policy the format, warm-start it on "
        "demonstrations, or use easier tasks."
    )
