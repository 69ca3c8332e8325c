"""Causes are differences that the run shows; without one the cause is not known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_run import CONFIG, add_steps, open_writer

from echoscope.diagnostics.judge.advice import measured
from echoscope.diagnostics.judge.advice.situation import SettingsChange, Situation
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.lineage import changes_of
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.reader import open_run
from echoscope.store.records import CommandAck, CommandAction, CommandOutcome, SettingsRecord
from echoscope.store.steer.commands import new_command

Row = Callable[[int], Mapping[str, float]]
RUN = Situation(
    kind="ended",
    run="runs/a",
    config={"optim": {"lr": 3e-4}, "loss": {"entropy_coef": 0.0}, "reward": {"shaping": []}},
    checkpoints=(10, 20, 30, 40),
)


def judged(row: Row, situation: Situation, steps: int = 60) -> Verdict:
    diagnosis = Diagnosis()
    diagnosis.engine.situation = situation
    for step in range(steps):
        diagnosis.observe(step, row(step))
    return diagnosis.verdict()


def solved(rate: float) -> dict[str, float]:
    """An evaluation on 200 fixed tasks, and 64 episodes of training."""
    return {
        "eval/all/success_rate": rate,
        "eval/all/num_tasks": 200.0,
        "rollout/success_rate": rate,
        "rollout/num_episodes": 64.0,
    }


def falls_at(step: int, *, to: float = 0.05) -> Row:
    return lambda s: solved(0.85 if s < step else to)


# --- (a) what was changed shortly before


def set_at(step: int, old: object, new: object, key: str = "optim.lr") -> SettingsChange:
    return SettingsChange(step=step, values={key: (old, new)})


SPIKE = (set_at(34, 3e-4, 4e-3), set_at(36, 4e-3, 3e-4))


def test_truth_5_a_live_change_before_the_fall_is_the_cause() -> None:
    verdict = judged(falls_at(35), replace(RUN, changes=SPIKE))
    assert len(verdict.causes) == 1
    assert verdict.causes[0].startswith(
        "optim.lr was set to 0.004 after step 33 (before: 0.0003), and set back after step 35; "
        "the change in the metrics began "
    )
    action = verdict.actions[0]
    assert action.command == "echoscope ctl runs/a branch --checkpoint 30"
    assert action.text.startswith(
        "Branch from checkpoint 30 with its own settings. It is from before the change."
    )
    assert "optim.lr was set to 0.004" in action.why
    assert "It is not the cause if a branch from before step 34 without this change" in verdict.text


def test_truth_5_a_change_that_still_holds_is_undone() -> None:
    verdict = judged(falls_at(35), replace(RUN, changes=SPIKE[:1]))
    action = verdict.actions[0]
    assert action.command == "echoscope ctl runs/a branch --checkpoint 30 optim.lr=0.0003"


def test_truth_5_a_run_that_recovers_is_let_go_on_and_the_change_is_named() -> None:
    def recovers(step: int) -> dict[str, float]:
        return solved(0.85 if step < 35 else 0.3 if step < 42 else 0.75)

    verdict = judged(recovers, replace(RUN, changes=SPIKE), 70)
    assert verdict.state is RunState.RECOVERING
    assert verdict.causes[0].startswith("optim.lr was set to 0.004 after step 33")
    assert verdict.actions[0].text.startswith("Let the run go on and watch success")
    assert verdict.actions[0].command == ""
    assert "branch --checkpoint" not in verdict.text


@pytest.mark.parametrize(
    "change",
    [
        set_at(10, 3e-4, 4e-3),  # long before
        set_at(50, 3e-4, 4e-3),  # after
        set_at(34, 3e-4, 1e-4),  # smaller steps let nothing collapse
        set_at(34, 60, 120, "steps"),
        set_at(34, 20, 5, "eval.every"),
    ],
)
def test_what_cannot_have_done_it_is_no_cause(change: SettingsChange) -> None:
    assert judged(falls_at(35), replace(RUN, changes=(change,))).causes == ()


def falls_and_drifts(*, lost_at: int, far_at: int) -> Row:
    """Success is lost at one step; at another the policy is far from its reference: a warning."""
    return lambda step: {**falls_at(lost_at)(step), "policy/ref_kl": 2.0 * (step >= far_at)}


def test_what_was_changed_after_the_loss_is_not_undone_for_a_later_warning() -> None:
    rate = set_at(48, 3e-4, 4e-3)
    verdict = judged(falls_and_drifts(lost_at=20, far_at=50), replace(RUN, changes=(rate,)), 90)
    assert verdict.kinds == ("LOW_SUCCESS", "KL_DRIFT")
    assert verdict.causes == ()
    assert "undoes the change" not in verdict.text


def test_the_change_before_the_loss_is_undone_and_not_that_before_an_earlier_warning() -> None:
    changes = (set_at(34, 3e-4, 4e-3), set_at(58, 0.0, 0.1, "loss.entropy_coef"))
    verdict = judged(falls_and_drifts(lost_at=60, far_at=35), replace(RUN, changes=changes), 90)
    assert verdict.kinds == ("LOW_SUCCESS", "KL_DRIFT")
    assert verdict.causes[0].startswith("loss.entropy_coef was set to 0.1 after step 57")
    assert verdict.causes[1].startswith("optim.lr was set to 0.004 after step 33")
    assert verdict.actions[0].settings == {"loss.entropy_coef": 0.0}


def test_what_a_branch_changed_is_a_cause_however_long_ago() -> None:
    branch = replace(set_at(11, 0.0, 0.1, "loss.kl_coef"), is_branch=True)
    other = replace(set_at(11, 1.0, 1.3, "sampling.temperature"), is_branch=True)
    verdict = judged(falls_at(35), replace(RUN, changes=(branch, other)))
    assert verdict.causes == (
        "the branch after step 10 set sampling.temperature to 1.3 (its parent: 1)",
    )


def test_the_time_line_is_read_from_the_store(tmp_path: Path) -> None:
    knobs = {"optim.lr": {"type": "number", "value": 3e-4}}
    parent = open_writer(tmp_path / "parent", config=CONFIG, live_knobs=knobs)
    add_steps(parent, "parent", range(6))
    command = new_command("parent", CommandAction.SET, settings={"optim.lr": 4e-3})
    ack = CommandAck(command_id=command.command_id, step=4, outcome=CommandOutcome.APPLIED)
    parent.record_acks([ack], [command], SettingsRecord(step=4, values={"optim.lr": 4e-3}))
    parent.close(status="finished")
    config = {
        **CONFIG,
        "optim": {"lr": 4e-3},
        "reward": {"shaping": [{"name": "length"}]},
        "branched_from": {"run_id": "parent", "step": 5},
    }
    child = open_writer(tmp_path / "child", config=config, live_knobs=knobs)
    add_steps(child, "child", range(6, 9))
    child.close(status="finished")
    live = SettingsChange(step=4, values={"optim.lr": (3e-4, 4e-3)})
    assert changes_of(open_run(tmp_path / "parent")) == (live,)
    found = changes_of(open_run(tmp_path / "child"))
    assert found[0] == live
    assert found[1].is_branch
    assert found[1].step == 6
    assert found[1].values["reward"] == (None, {"shaping": [{"name": "length"}]})


# --- (b) what differs from the recipe


def extends(values: Mapping[str, Any], **sections: Any) -> Situation:
    config = dict(RUN.config) | sections | {"recipe": {"name": "frozen_lake", "values": values}}
    return replace(RUN, config=config)


def test_newcomer_h1_a_difference_is_read_from_the_recipe() -> None:
    verdict = judged(falls_at(35), extends({"optim.lr": 1.5e-4}, optim={"lr": 4e-3}))
    assert verdict.causes == (
        "optim.lr is 0.004; the recipe `frozen_lake` that this run extends has 0.00015",
    )
    assert verdict.actions[0].settings == {"optim.lr": 1.5e-4}
    assert verdict.refuted_by[-1] == "cause 1: a run with the recipe's optim.lr goes the same way"


def test_newcomer_h1_a_run_like_its_recipe_has_no_such_cause() -> None:
    verdict = judged(falls_at(35), extends({"model.path": "tiny"}, optim={"lr": 1.5e-4}))
    assert verdict.causes == ()
    assert "recipe" not in verdict.text
    assert "Likely cause: not known. No setting was changed" in verdict.text


def test_smaller_steps_than_the_recipes_are_no_cause_of_a_fall() -> None:
    assert judged(falls_at(35), extends({"optim.lr": 1e-3})).causes == ()


# --- (c) a term of the reward that grew while success fell


def hacked(step: int) -> dict[str, float]:
    success = 0.8 if step < 35 else 0.05
    length = 0.4 if step < 35 else 3.0
    noise = 0.002 * (-1) ** step
    return solved(success) | {
        "reward/return_mean": success + length + noise,
        "reward/term/env": success + noise,
        "reward/term/length": length + noise,
    }


LENGTH = {"name": "length", "function": "length", "weight": 0.05}


@pytest.mark.parametrize(
    ("shaping", "settings", "typed"),
    [
        ([LENGTH], {"reward.shaping": []}, "'reward.shaping=[]'"),
        (
            [{"name": "agreement"}, LENGTH],
            {"reward.shaping.1.weight": 0},
            "reward.shaping.1.weight=0",
        ),
    ],
)
def test_truth_3_the_term_that_pays_is_named_and_taken_out(
    shaping: list[dict[str, Any]], settings: dict[str, Any], typed: str
) -> None:
    config = {"optim": {"lr": 1e-3}, "reward": {"shaping": shaping}}
    branch = SettingsChange(
        step=31,
        values={"reward.shaping": ([], shaping), "optim.lr": (3e-4, 1e-3)},
        is_branch=True,
    )
    verdict = judged(hacked, replace(RUN, config=config, changes=(branch,)))
    assert "REWARD_HACKING" in verdict.kinds
    assert verdict.causes[0] == (
        "the term `length` of the reward grew from 0.4 to 3 while evaluation success fell from "
        "80 % to 5 %"
    )
    assert len([cause for cause in verdict.causes if "length" in cause]) == 1
    assert verdict.actions[0].settings == settings
    assert verdict.actions[0].command == f"echoscope ctl runs/a branch --checkpoint 30 {typed}"


def test_truth_3_another_trainer_is_told_to_take_the_term_out() -> None:
    verdict = judged(hacked, Situation(trainer="trl"))
    assert "continue with the term `length` taken out of the reward (weight 0)" in verdict.text
    assert "learning rate" not in verdict.text


def test_newcomer_h2_training_up_and_evaluation_down_is_hacking_or_overfitting() -> None:
    def disagrees(step: int) -> dict[str, float]:
        noise = 0.01 * math.sin(5 * step)
        row = {"reward/return_mean": 0.3 + 0.01 * step + noise}
        if step % 5 == 0:
            row |= {
                "eval/all/success_rate": 0.45 if step < 40 else 0.09,
                "eval/all/num_tasks": 200.0,
            }
        return row

    verdict = judged(disagrees, Situation(trainer="verl"), 80)
    assert "(reward hacking), or the policy overfits to the training tasks" in verdict.causes[0]
    assert "learning rate" not in verdict.actions[0].text.partition("As a trial only")[0]


def test_a_return_that_rises_while_success_falls_is_that_of_the_terms_that_the_run_adds() -> None:
    def row(step: int) -> dict[str, float]:
        return {k: v for k, v in hacked(step).items() if "term" not in k}

    config = {**RUN.config, "reward": {"shaping": [LENGTH]}}
    verdict = judged(row, replace(RUN, config=config))
    assert verdict.causes[0].startswith("mean return rose while evaluation success fell, and the ")
    assert "run adds `length` to the environment's reward" in verdict.causes[0]
    assert verdict.actions[0].settings == {"reward.shaping": []}


def test_a_term_grows_from_the_first_step_where_success_fell_from_the_evaluation_before_it() -> (
    None
):
    def row(step: int) -> dict[str, float]:
        if step == 0:
            return {"eval/all/success_rate": 0.8, "eval/all/num_tasks": 200.0}
        training = {k: v for k, v in hacked(step + 30).items() if not k.startswith("eval/")}
        lost = {"eval/all/success_rate": 0.05, "eval/all/num_tasks": 200.0}
        return training | (lost if step % 5 == 0 else {})

    config = {**RUN.config, "reward": {"shaping": [LENGTH]}}
    verdict = judged(row, replace(RUN, config=config), 31)
    assert verdict.causes[0].startswith("the term `length` of the reward grew from 0.398 to 3 ")


PAYS = {"reward/share/length": 0.6, "reward/agreement/length": 0.02}


@pytest.mark.parametrize(
    ("values", "shaping", "settings"),
    [
        (PAYS, [LENGTH], {"reward.shaping": []}),
        (PAYS, [LENGTH, {"name": "brief"}], {"reward.shaping.0.weight": 0}),
        ({"reward/share/length": 0.6}, [LENGTH], None),  # the environment's reward never differs
        (PAYS | {"reward/agreement/length": 0.5}, [LENGTH], None),  # it pays what solves tasks
        (PAYS | {"reward/share/length": 0.2}, [LENGTH], None),
        (PAYS, [LENGTH | {"function": "format"}], None),
        (PAYS, [{"name": "brief"}], None),
    ],
)
def test_a_term_that_pays_for_something_else_is_taken_out_though_it_did_not_grow(
    values: dict[str, float], shaping: list[dict[str, Any]], settings: dict[str, Any] | None
) -> None:
    run = replace(RUN, config={**RUN.config, "reward": {"shaping": shaping}})
    verdict = judged(lambda step: falls_at(35)(step) | values, run)
    named = [cause for cause in verdict.causes if "of the differences in reward" in cause]
    assert len(named) == (settings is not None)
    if settings is not None:
        assert verdict.actions[0].settings == settings
        assert named[0].startswith(
            "the term `length` makes 60 % of the differences in reward between samples of one "
            "task, and does not pay what the environment pays"
        )


def test_a_term_that_paid_for_solving_tasks_until_the_fall_is_taken_out() -> None:
    """Reward by length, with which success fell from 67 to 0 % between steps 3 and 6: at first long
    replies solved more tasks, so that the means of all steps say nothing."""
    shares, agreements = (0.5, 0.3, 0.3, 0.4, 0.9, 1.0), (0.5, 0.5, 0.5, 0.0, -0.1)

    def row(step: int) -> dict[str, float]:
        values = falls_at(33)(step)
        if 29 < step < 36:
            values |= {"reward/share/length": shares[step - 30]}
        if 29 < step < 35:
            values |= {"reward/agreement/length": agreements[step - 30]}
        return values

    verdict = judged(row, replace(RUN, config={**RUN.config, "reward": {"shaping": [LENGTH]}}))
    assert verdict.actions[0].settings == {"reward.shaping": []}
    assert "the term `length` makes 77 % of the differences" in verdict.causes[0]
    assert verdict.causes[0].endswith("(correlation 0.13)")


@pytest.mark.parametrize(("growth", "is_cause"), [(1.8, True), (1.15, False)])
def test_a_bonus_is_the_cause_where_entropy_multiplies_within_the_first_steps(
    growth: float, is_cause: bool
) -> None:
    """The level of the first five steps is already a raised one: only the rows show the rise."""

    def explodes(step: int) -> dict[str, float]:
        good, valid = (0.8, 1.0) if step == 0 else (0.0, 0.0)
        evaluated = {
            "eval/all/success_rate": good,
            "eval/all/action_valid_frac": valid,
            "eval/all/num_tasks": 200.0,
        }
        if step == 0:
            return evaluated
        format_valid = {"rollout/format_valid_frac": max(1.0 - 0.2 * step, 0.0)}
        entropy = {"policy/entropy": 0.3 * growth**step}
        return format_valid | entropy | (evaluated if step == 5 else {})

    config = RUN.config | {"loss": {"entropy_coef": 1.0}}
    causes = judged(explodes, replace(RUN, config=config, checkpoints=(0, 2, 4)), 6).causes
    assert any("the entropy bonus outweighs the reward" in cause for cause in causes) == is_cause


# --- (e) to (h), and what is no cause


def test_truth_10b_only_what_can_raise_entropy_is_listed() -> None:
    def explodes(step: int) -> dict[str, float]:
        entropy = 0.2 if step < 25 else 0.2 * 1.15 ** (step - 24)
        return solved(0.8 if step < 30 else 0.05) | {
            "policy/entropy": entropy,
            "optim/lr": 3e-4,
            "reward/group_std_mean": 0.3,
            "reward/zero_std_frac": 0.7,
        }

    config = RUN.config | {"loss": {"entropy_coef": 0.1}, "selection": {"strategy": "none"}}
    verdict = judged(explodes, replace(RUN, config=config))
    assert len(verdict.causes) == 1
    assert verdict.causes[0].startswith("the entropy bonus outweighs the reward")


@pytest.mark.parametrize("last_rate", [0.0, 8.3e-11])
def test_foreign_h3_a_decayed_rate_is_never_a_cause(last_rate: float) -> None:
    def decays(step: int) -> dict[str, float]:
        return falls_at(40)(step) | {"optim/lr": last_rate + 2e-7 * (1 - step / 60)}

    verdict = judged(decays, Situation(trainer="trl"))
    assert verdict.causes == ()
    assert "Likely cause: not known." in verdict.text
    assert "As a trial only, go back to a checkpoint" in verdict.actions[0].text
    assert "a third of the learning rate (`learning_rate`)" in verdict.actions[0].text
    assert "e-1" not in verdict.text


def test_a_rate_that_rose_since_the_best_is_compared_by_its_peak() -> None:
    def rises(step: int) -> dict[str, float]:
        rate = 1e-4 if step < 40 else 1e-3 if step < 45 else 1e-6
        return falls_at(40)(step) | {"optim/lr": rate}

    verdict = judged(rises, RUN)
    assert verdict.causes == (
        "the learning rate rose from 0.0001, when success was best, to 0.001",
    )


def test_an_unknown_cause_gives_a_look_and_a_trial_that_is_named_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(measured, "measured", lambda: ())
    verdict = judged(falls_at(35), RUN)
    action = verdict.actions[0]
    assert verdict.causes == ()
    assert action.text.startswith("First compare replies to the same tasks")
    assert "As a trial only, branch from checkpoint 30" in action.text
    assert (action.settings, action.is_trial) == ({"optim.lr": 1e-4}, True)
    assert "not measured for this alarm" in action.why
    assert "keeps what" not in verdict.text


def test_a_lost_run_without_a_checkpoint_from_before_is_told_with_what_to_start_again() -> None:
    action = judged(falls_at(35), replace(RUN, checkpoints=(40,))).actions[0]
    assert "As a trial only, start the run again with optim.lr=0.0001 (now 0.0003)" in action.text
    assert "no checkpoint is left from before step" in action.text
    assert (action.settings, action.verb, action.command) == ({"optim.lr": 1e-4}, "none", "")


def test_advice_goes_by_what_a_collapse_began_with_and_not_by_what_followed() -> None:
    def row(step: int) -> dict[str, float]:
        is_mute, is_alike = 35 <= step < 50, step >= 45
        return solved(0.8 if step < 35 else 0.0) | {
            "rollout/action_valid_frac": 0.05 if is_mute else 0.97,
            "reward/group_std_mean": 0.0 if is_alike else 0.3,
            "text/near_duplicate_frac": 0.9 if is_alike else 0.02,
        }

    verdict = judged(row, RUN, steps=80)
    assert "ECHO_TRAP" in verdict.kinds
    assert "FORMAT_COLLAPSE" not in verdict.kinds
    action = verdict.actions[0]
    assert "groups whose rewards differ" not in action.text  # as an echo trap alone advises
    assert (action.verb, action.checkpoint, list(action.settings)) == ("branch", 30, ["optim.lr"])


def test_newcomer_low_a_cause_is_said_once() -> None:
    changes = (set_at(34, 3e-4, 4e-3),)
    situation = replace(extends({"optim.lr": 3e-4}, optim={"lr": 4e-3}), changes=changes)

    def row(step: int) -> dict[str, float]:
        return falls_at(35)(step) | {"optim/lr": 3e-4 if step < 34 else 4e-3}

    assert len(judged(row, situation).causes) == 1


def test_replies_that_are_cut_off_only_since_a_sudden_collapse_had_no_short_limit() -> None:
    """A level is of several steps; here each of them is of the time after the collapse but two."""

    def row(step: int) -> dict[str, float]:
        is_well = step < 2
        return solved(0.6 if is_well else 0.0) | {
            "rollout/length_limited_frac": 0.0 if is_well else 0.9,
            "rollout/action_valid_frac": 1.0 if is_well else 0.0,
            "rollout/format_valid_frac": 1.0 if is_well else 0.0,
        }

    verdict = judged(row, RUN, steps=8)
    assert "LENGTH_SATURATION" in verdict.kinds
    assert not any("too long for their limit" in cause for cause in verdict.causes)
    cut_from_the_start = judged(lambda step: row(step) | {"rollout/length_limited_frac": 0.9}, RUN)
    assert any("too long for their limit" in cause for cause in cut_from_the_start.causes)


@pytest.mark.parametrize(("coefficient", "is_named"), [(-3.0, True), (0.0, False)])
def test_a_penalty_on_entropy_is_the_cause_of_replies_without_variety(
    coefficient: float, is_named: bool
) -> None:
    config = {**RUN.config, "loss": {"entropy_coef": coefficient}}

    def row(step: int) -> dict[str, float]:
        is_well = step < 20
        return solved(0.8 if is_well else 0.3) | {
            "policy/entropy": 0.5 if is_well else 0.001,
            "reward/zero_std_frac": 0.2 if is_well else 0.95,
        }

    verdict = judged(row, replace(RUN, config=config))
    named = [cause for cause in verdict.causes if "the loss penalises entropy" in cause]
    assert bool(named) is is_named
    if is_named:
        assert verdict.actions[0].settings == {"loss.entropy_coef": 0}
