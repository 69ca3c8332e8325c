"""How a branch of a cure stands: worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import pytest
from made_run import open_writer, step_metrics

from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.proposals import Proposals
from echoscope.diagnostics.tools import curing
from echoscope.diagnostics.tools.curing import proposed, standing
from echoscope.store.reader import RunReader, open_run


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
