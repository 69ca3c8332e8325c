"""Compare in a real browser: only what is comparable stands side by side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from browsing import DashboardProcess, draw_chart, table_rows, text_of, until, visit
from made_run import CONFIG, made_trajectory, make_run, open_writer, step_metrics

from echoscope.store.records import Split

NUM_TASKS = 3
ROW = 35
"""Pixels of a row of a table."""


@pytest.fixture(scope="module")
def boards(dashboard: DashboardProcess) -> tuple[str, str, str]:
    """Runs `a` and `b` were evaluated on the same boards; `c` on larger ones, of the same seeds."""
    names = ("boards-a", "boards-b", "boards-c")
    for name, size, rate in zip(names, (4, 4, 8), (1 / 3, 2 / 3, 1.0), strict=True):
        entry = {
            "tag": "small",
            "env": "frozen_lake",
            "groups": NUM_TASKS,
            "params": {"size": size},
        }
        config = {**CONFIG, "envs": {**CONFIG["envs"], "eval": [entry]}}
        writer = open_writer(dashboard.root / name, config=config)
        evaluated = [
            replace(
                made_trajectory(0, n), split=Split.EVAL, env_seed=n, task_key=f"{size} board {n}"
            )
            for n in range(NUM_TASKS)
        ]
        values = {"eval/small/success_rate": rate, "eval/small/num_tasks": float(NUM_TASKS)}
        writer.commit_step(
            metrics=[
                step_metrics(name, 0, {"policy/entropy": 1.0}),
                step_metrics(name, 0, values, "eval"),
            ],
            trajectories=evaluated,
        )
        writer.close(status="finished")
    return names


def test_runs_of_equal_parameters_share_their_tasks(
    boards: tuple[str, str, str], dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/compare?runs={boards[0]},{boards[1]}")
    page.get_by_text("3 tasks in common, at each run's last evaluation").wait_for()


def test_runs_of_other_parameters_have_no_tasks_in_common_whatever_the_seeds(
    boards: tuple[str, str, str], dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/compare?runs={boards[0]},{boards[2]}")
    page.get_by_text("These runs were not evaluated on common tasks.").wait_for()
    assert "tasks in common" not in text_of(page)


def test_evaluations_say_which_are_not_comparable(
    boards: tuple[str, str, str], dashboard: DashboardProcess, page: Any
) -> None:
    """The best rate of all was on other boards."""
    visit(page, f"{dashboard.url}/compare?runs={','.join(boards)}")

    def evaluations() -> list[list[str]]:
        tables = [table_rows(page, place) for place in range(6)]
        return next((rows for rows in tables if rows and rows[0][:2] == ["tasks", "run"]), [])

    head, *rows = until(evaluations, "evaluations", page=page)
    assert head[:4] == ["tasks", "run", "step", "success"]
    assert [row[1] for row in rows] == [boards[2], boards[1], boards[0]]
    page.get_by_text("Not comparable, because these runs draw other tasks: small").wait_for()


@pytest.fixture(scope="module")
def seeds(dashboard: DashboardProcess) -> list[str]:
    """As many runs as are compared at once."""
    names = [f"collapse-template-{n:02d}" for n in range(8)]
    for name in names:
        make_run(dashboard.root / name, 3, values=lambda step: {"policy/entropy": 1.0 + step})
    return names


def test_eight_runs_have_one_legend_and_one_of_them_is_hidden(
    seeds: list[str], dashboard: DashboardProcess, page: Any
) -> None:
    """The table is the legend: names as they are, and a button that hides."""
    visit(page, f"{dashboard.url}/compare?runs={','.join(seeds)}&metric=policy/entropy")
    plot = draw_chart(page, "[class*=st-key-compare-policy]")
    assert page.locator(f"{plot} .legendtext").count() == 0
    assert page.locator(f"{plot} .scatterlayer .trace").count() == len(seeds)
    assert page.locator(f"{plot} .nsewdrag").first.bounding_box()["height"] > 150
    _, *rows = until(lambda: table_rows(page), "legend", page=page)
    assert [row[1] for row in rows] == seeds
    box = page.locator("[data-testid=stDataFrame] canvas").first.bounding_box()
    page.mouse.click(box["x"] + box["width"] - 190, box["y"] + 1.5 * ROW)  # Hide, first row
    page.wait_for_url("**hide=*")
    until(
        lambda: page.locator(f"{plot} .scatterlayer .trace").count() == len(seeds) - 1,
        "chart without the hidden run",
        page=page,
    )
    assert "\\" not in text_of(page)
