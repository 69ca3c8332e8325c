"""Replay, Diagnosis and Compare in a real browser: what a person reads there is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import settle, until, visit
from made_run import CONFIG, made_trajectory, open_writer

from echoscope.store.artifacts import DiagnosticRecord
from echoscope.store.records import Split, StepMetrics, Trajectory, TrajectoryOutcome


def metrics(run_id: str, step: int, **values: float) -> StepMetrics:
    return StepMetrics(
        run_id=run_id,
        step=step,
        phase="train",
        policy_version=step,
        wall_time=1_000.0 + step,
        values=values,
    )


@pytest.fixture
def splits_root(tmp_path: Path) -> Path:
    """One step with four training, six evaluation and two probe episodes."""
    writer = open_writer(tmp_path / "made")
    trained = [made_trajectory(0, n) for n in range(4)]
    evaluated = [replace(made_trajectory(0, n), split=Split.EVAL) for n in range(6)]
    probed = [replace(made_trajectory(0, n), split=Split.PROBE) for n in range(2)]
    writer.commit_step(
        metrics=[metrics("made", 0, **{"policy/entropy": 1.0})],
        trajectories=[*evaluated, *probed, *trained],
    )
    writer.close(status="finished")
    return tmp_path


def test_c5_the_replay_shows_one_split_at_a_time(splits_root: Path, serve: Any, page: Any) -> None:
    visit(page, f"{serve(splits_root).url}/replay?run=made")
    page.get_by_role("heading", name="t00000000-00000").wait_for()
    assert page.get_by_text("4 trajectories: 2 solved of 4").count() == 1
    page.get_by_role("button", name="Evaluation 6").or_(
        page.get_by_role("radio", name="Evaluation 6")
    ).first.click()
    page.get_by_role("heading", name="e00000000-00000").wait_for()
    assert page.get_by_text("evaluation, never trained on").count() == 1
    assert page.get_by_text("pending").count() == 0


def test_c9_one_colour_means_one_number_in_every_trajectory(
    tmp_path: Path, serve: Any, page: Any
) -> None:
    """A healthy and a collapsed reasoning have the same legend; noise has no colour."""
    writer = open_writer(tmp_path / "made")
    pair: list[Trajectory] = []
    outcomes = []
    for index, information in enumerate(([0.9, 0.6, 0.0], [0.05, 0.03, 0.0])):
        plain = made_trajectory(0, index)
        turn = replace(
            plain.turns[0],
            prompt_tokens=np.array([1]),
            response_tokens=np.array([1, 2, 3]),
            logprobs=np.array([-1.0, -1.0, -1.0]),
        )
        pair.append(replace(plain, turns=(turn,)))
        outcomes.append(
            TrajectoryOutcome(
                trajectory_id=pair[-1].id,
                advantage=0.0,
                kept=True,
                information=(np.array(information, dtype=np.float32),),
            )
        )
    writer.commit_step(
        metrics=[metrics("made", 0, **{"policy/entropy": 1.0})],
        trajectories=pair,
        outcomes=outcomes,
    )
    writer.close(status="finished")
    url = serve(tmp_path).url
    legends, coloured = [], []
    for trajectory in pair:
        visit(page, f"{url}/replay?run=made&trajectory={trajectory.id}&heat=information")
        page.locator(".es-legend").first.wait_for()
        legends.append(page.locator(".es-legend .es-key").all_inner_texts())
        cells = page.locator(".es-cell")
        coloured.append(
            sum("es-p" in (cells.nth(n).get_attribute("class") or "") for n in range(3))
        )
    assert legends[0] == legends[1]
    assert coloured == [2, 0]


def test_c10_a_search_ranks_all_matches_and_marks_them(
    tmp_path: Path, serve: Any, page: Any
) -> None:
    writer = open_writer(tmp_path / "made")
    for step in range(3):
        some = [made_trajectory(step, n, "I go UP (really).") for n in range(100)]
        if step == 2:
            turn = replace(some[77].turns[0], reward=-1.0)
            some[77] = replace(some[77], turns=(turn,))
        writer.commit_step(
            metrics=[metrics("made", step, **{"policy/entropy": 1.0})], trajectories=some
        )
    writer.close(status="finished")
    visit(page, f"{serve(tmp_path).url}/replay?run=made&q=go+up+(REALLY&order=worst")
    page.get_by_role("heading", name="t00000002-00077").wait_for()
    assert page.get_by_text("200 of 300 matches").count() == 1
    assert page.locator(".es-hit").first.inner_text() == "go UP (really"
    heads = page.locator(".es-table th").all_inner_texts()
    assert heads[:4] == ["id", "return", "success", "match"]


def test_c11_the_verdict_is_that_of_the_chosen_step(tmp_path: Path, serve: Any, page: Any) -> None:
    writer = open_writer(tmp_path / "made")
    for step in range(41):
        is_well = step < 21
        values = {
            "rollout/action_valid_frac": 0.95 if is_well else 0.1,
            "rollout/success_rate": 0.6 if is_well else 0.05,
            "text/dependence": 0.8,
        }
        template = {"text": "Go ___.", "match_frac": 0.3, "coverage": 0.5}
        record = DiagnosticRecord(
            step=step, kind="text", payload=json.dumps({"template": template})
        )
        writer.commit_step(
            metrics=[metrics("made", step, **values)],
            trajectories=[made_trajectory(step, n) for n in range(4)],
            diagnostics=[record] if step % 5 == 0 else [],
        )
    writer.close(status="finished")
    url = serve(tmp_path).url
    box = page.locator(".st-key-verdict_box")
    visit(page, f"{url}/diagnosis?run=made")
    until(lambda: "Format collapse" in box.inner_text(), "verdict of the newest step", page=page)
    visit(page, f"{url}/diagnosis?run=made&step=15")
    until(lambda: "after step 15" in box.inner_text(), "verdict of step 15", page=page)
    assert "Format collapse" not in box.inner_text()
    box.get_by_role("link", name="Newest verdict").click()
    settle(page)
    until(lambda: "Format collapse" in box.inner_text(), "the newest verdict again", page=page)


def test_c3_the_same_seed_on_another_board_is_another_task(
    tmp_path: Path, serve: Any, page: Any
) -> None:
    """Runs `a` and `b` play the same boards, run `c` has other parameters under the same seeds."""
    for name, size in (("a", 4), ("b", 4), ("c", 8)):
        entry = {"tag": "small", "env": "frozen_lake", "groups": 3, "params": {"size": size}}
        config = {**CONFIG, "envs": {**CONFIG["envs"], "eval": [entry]}}
        writer = open_writer(tmp_path / name, config=config)
        evaluated = [
            replace(
                made_trajectory(0, n), split=Split.EVAL, env_seed=n, task_key=f"{size} board {n}"
            )
            for n in range(3)
        ]
        values = {"eval/small/success_rate": 2 / 3, "eval/small/num_tasks": 3.0}
        both = [
            metrics(name, 0, **{"policy/entropy": 1.0}),
            replace(metrics(name, 0, **values), phase="eval"),
        ]
        writer.commit_step(metrics=both, trajectories=evaluated)
        writer.close(status="finished")
    url = serve(tmp_path).url
    visit(page, f"{url}/compare?runs=a,b")
    page.get_by_text("3 tasks in common").wait_for()
    visit(page, f"{url}/compare?runs=a,c")
    page.get_by_text("were not evaluated on common tasks").wait_for()
    visit(page, f"{url}/evaluations")
    page.get_by_role("radio", name="small (size 4)").wait_for()
    page.get_by_role("radio", name="small (size 8)").wait_for()
