"""Compare in a real browser: only what is comparable stands side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from browsing import TELEPHONE, DashboardProcess, draw_chart, table_rows, text_of, until, visit
from held_run import HeldRun
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
        tables = [table_rows(page, index) for index in range(6)]
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


def test_the_curve_of_a_live_run_grows_without_a_reload(
    tmp_path: Path, serve: Callable[..., DashboardProcess], page: Any
) -> None:
    key = "eval/frozen_lake/success_rate"
    run = HeldRun(tmp_path / "runs" / "live")
    run.advance(10, **{key: 0.5})
    make_run(tmp_path / "runs" / "ended", 10, values=lambda step: {key: 0.1})
    visit(page, f"{serve(tmp_path / 'runs').url}/compare?runs=live,ended&metric={key}")
    draw_chart(page, "[class*=st-key-compare-eval]")
    points = page.locator("[class*=st-key-compare-eval] .scatterlayer .point")
    until(lambda: points.count() == 20, "ten points a run", page=page)
    assert page.get_by_role("combobox", name="Compare by").count() == 1
    assert "\\" not in text_of(page)  # as in frozen\\_lake
    page.evaluate("window.isSamePage = true")
    run.advance(5, **{key: 0.9})
    until(lambda: points.count() == 25, "the new steps", page=page)
    assert page.evaluate("window.isSamePage")
    run.close()


TITLES = """() => [...document.querySelectorAll("[class*=st-key-compare_sweep] .annotation-text")]
  .filter((text) => text.querySelector("tspan[style*=bold]") || /bold/.test(text.innerHTML))
  .map((text) => text.getBoundingClientRect())
  .map(({ left, right, top, bottom }) => [left, right, top, bottom])"""


@pytest.mark.parametrize("width", [1440, 390])
def test_titles_of_a_sweep_do_not_cover_each_other(
    tmp_path: Path, serve: Callable[..., DashboardProcess], browser: Any, width: int
) -> None:
    """Few runs that differ in many settings with long names."""
    settings = [f"diagnostics.information{n}.threshold_number_{n}" for n in range(9)]
    for run in range(5):
        config = {**CONFIG, **{key: (run * (n + 3)) % 7 % 3 for n, key in enumerate(settings)}}
        make_run(
            tmp_path / "runs" / f"run{run}",
            3,
            config=config,
            values=lambda step, run=run: {"policy/entropy": 1.0 + run},
        )
    names = ",".join(f"run{run}" for run in range(5))
    address = f"/compare?runs={names}&metric=policy/entropy"
    is_phone = width < 640
    context = browser.new_context(
        viewport={"width": width, "height": 900}, user_agent=TELEPHONE if is_phone else None
    )
    page = context.new_page()
    visit(page, serve(tmp_path / "runs").url + address)
    draw_chart(page, "[class*=st-key-compare_sweep]")
    boxes = until(lambda: page.evaluate(TITLES), "titles", page=page)
    assert len(boxes) >= 4
    covered = [
        (a, b)
        for a, b in combinations(boxes, 2)
        if a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]
    ]
    assert covered == []
    context.close()
