"""How a branch of a cure stands: worked out by hand."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_run import open_writer, step_metrics

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.proposals import Proposals
from echoscope.diagnostics.tools import curing
from echoscope.diagnostics.tools.curing import (
    FAILED,
    CureError,
    compare,
    proposed,
    standing,
    winner,
)
from echoscope.store.reader import RunReader, open_run
from echoscope.store.steer.cures import Arm, Cure, cure_file, read_cure


@pytest.mark.parametrize(
    ("rates", "level"),
    [
        ({2: 0.9, 4: 0.2, 8: 0.5, 9: 0.7}, 0.6),  # the last third: steps 8, 9 and 10
        ({2: 0.9, 4: 0.2, 7: 0.3}, 0.3),  # the last half, where no evaluation is from there
        ({2: 0.9, 4: 0.2, 6: 0.3}, math.nan),  # it says little of what the treatment did
    ],
)
def test_the_level_is_that_of_the_last_third_or_half(
    tmp_path: Path, rates: Mapping[int, float], level: float
) -> None:
    """A branch that began after step 2 and has trained eight steps."""
    writer = open_writer(tmp_path / "branch")
    for step in range(11):
        rows = [step_metrics("branch", step, {"policy/entropy": 1.0})]
        if step in rates:
            evaluated = {"eval/all/success_rate": rates[step]}
            rows.append(step_metrics("branch", step, evaluated, phase="eval"))
        writer.commit_step(metrics=rows, trajectories=[], outcomes=[])
    writer.close(status="finished")
    stand = standing(open_run(tmp_path / "branch"), 2)
    assert stand.level == pytest.approx(level, nan_ok=True)
    assert stand.num_trained == 8


@pytest.mark.parametrize("is_evaluated", [True, False])
def test_another_task_is_compared_only_where_fixed_tasks_tell_whether_it_helped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_evaluated: bool
) -> None:
    writer = open_writer(tmp_path / "run")
    rows = [step_metrics("run", 0, {"policy/entropy": 1.0})]
    if is_evaluated:
        rows.append(step_metrics("run", 0, {"eval/all/success_rate": 0.5}, phase="eval"))
    writer.commit_step(metrics=rows, trajectories=[], outcomes=[])
    writer.close(status="finished")
    allowed: list[bool] = []

    def answer(run: RunReader, *, may_change_task: bool) -> Proposals:
        allowed.append(may_change_task)
        return Proposals(state=RunState.COLLAPSED, kinds=(), treatments=(), why_none="")

    monkeypatch.setattr(curing, "proposals_of", answer)
    for may_change_task in (True, False):
        proposed(open_run(tmp_path / "run"), may_change_task=may_change_task)
    assert allowed == [is_evaluated, False]


def branch_of(run: Path, name: str, *, trained: int, status: str = "stopped") -> None:
    """A branch that began after step 2, and succeeds in half of its tasks."""
    writer = open_writer(run.parent / name)
    for step in range(3 + trained):
        evaluated = {"eval/all/success_rate": 0.5}
        rows = [step_metrics(name, step, evaluated, phase="eval")]
        writer.commit_step(metrics=rows, trajectories=[], outcomes=[])
    checkpoint = run.parent / name / "checkpoints" / "step_000002"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").touch()
    writer.close(status=status)


def cure_with(*arms: tuple[str, str], steps: int = 4) -> Cure:
    """A cure of the run `run` with (branch, why it ended) for each treatment."""
    treatments = tuple(
        Arm(reason=f"{n}", checkpoint=2, settings={"optim.lr": n}, why="", run_id=run_id, ended=why)
        for n, (run_id, why) in enumerate(arms, 1)
    )
    return Cure(run_id="run", by="ada", started_at=0.0, steps=steps, arms=treatments)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    branch_of(tmp_path / "run", "run", trained=4)
    cure_file(tmp_path / "run").parent.mkdir()
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("trained", "status", "is_chosen"),
    [(4, "stopped", True), (2, "finished", True), (2, "stopped", False), (2, "failed", False)],
)
def test_one_is_chosen_once_all_have_trained_their_steps(
    run: Path, trained: int, status: str, is_chosen: bool
) -> None:
    branch_of(run, "one", trained=4)
    branch_of(run, "two", trained=trained, status=status)
    cure = cure_with(("one", ""), ("two", ""), ("", f"{FAILED}no memory"))
    arm, reason = winner(run, cure)
    assert (arm == cure.arms[0]) is is_chosen
    assert ("not every branch has trained its 4 steps" in reason) is not is_chosen


@pytest.mark.parametrize("later", ["", "collapsed"])
def test_a_treatment_that_has_no_branch_yet_is_waited_for(run: Path, later: str) -> None:
    branch_of(run, "one", trained=4)
    arm, _ = winner(run, cure_with(("one", ""), ("", later)))
    assert (arm is None) is (later == "")


def test_where_every_branch_has_ended_none_is_trained_longer(run: Path) -> None:
    branch_of(run, "one", trained=4)
    cure = cure_with(("one", "LOW_SUCCESS is critical after 11 steps"), ("", f"{FAILED}no memory"))
    assert winner(run, cure) == (None, "No treatment holds: every branch failed or ended early.")


def test_what_failed_or_is_gone_is_tried_again_and_what_lost_is_not(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch_of(run, "one", trained=1)
    branch_of(run, "three", trained=4)
    tried: list[tuple[str, str]] = []

    def train(run: Path, arm: Arm, *more: object) -> str:
        tried.append((arm.reason, arm.run_id))
        raise CureError(f"{FAILED}no memory")

    monkeypatch.setattr(curing, "_trained", train)
    cure = cure_with(("one", f"{FAILED}no room"), ("gone", ""), ("three", "it collapsed"))
    after = compare(run, cure, minutes=1.0, on_change=lambda cure, event: None)
    assert tried == [("1", "one"), ("2", "")]
    assert [arm.ended for arm in after.arms] == [f"{FAILED}no memory"] * 2 + ["it collapsed"]
    assert read_cure(run) == after
    with pytest.raises(CureError, match="run: all branches failed, the first because: no memory"):
        compare(run, cure_with(("one", "")), minutes=1.0, on_change=lambda cure, event: None)


def test_a_process_that_does_not_end_is_ended(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curing, "_PATIENCE_S", 0.0)
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    arm = cure_with(("", "")).arms[0]
    with pytest.raises(CureError, match="did not end when the minutes were over"):
        curing._follow(process, run, arm, 4, 0.0, lambda: None)
    assert process.wait(10) < 0
