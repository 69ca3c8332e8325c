"""Charts in a real browser: every point stands where it was measured."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import DashboardProcess, draw_chart, hover, text_of, until, visit
from made_run import add_steps, made_trajectory, make_run, open_writer, step_metrics

EVALUATED = {0: 0.352, 20: 0.815, 40: 0.574}
"""Step to success on fixed tasks."""
LAST = 40
PLACES = """plot => {
  const chart = document.querySelector(plot);
  return chart._fullData.filter((one) => one.visible !== false).map(
    (one) => ({name: one.name, mode: one.mode, x: Array.from(one.x), y: Array.from(one.y)}));
}"""


@pytest.fixture(scope="module")
def measured(dashboard: DashboardProcess) -> str:
    """The name of a run with few evaluations, two probes, one gradient, and a mismatch of zero."""
    run: Path = dashboard.root / "measured"
    writer = open_writer(run)
    for step in range(LAST + 1):
        values = {
            "rollout/success_rate": 0.3 + 0.2 * (step % 2),
            "policy/mismatch_kl": (step % 3 - 1) * 1e-14,
            "optim/grad_norm": 1.0 + step % 4,
        }
        rows = [step_metrics(run.name, step, values)]
        if step in EVALUATED:
            rates = {
                "eval/lake/success_rate": EVALUATED[step],
                "eval/lake/success_rate_low": EVALUATED[step] - 0.06,
                "eval/lake/success_rate_high": EVALUATED[step] + 0.05,
                "eval/lake/num_tasks": 128.0,
            }
            rows.append(step_metrics(run.name, step, rates, "eval"))
        if step in (10, 30):
            rows.append(step_metrics(run.name, step, {"probe/lake/success_rate": 0.5}, "eval"))
        writer.commit_step(metrics=rows, trajectories=[made_trajectory(step, n) for n in range(2)])
    writer.close(status="finished")
    return run.name


def curves(page: Any, plot: str) -> dict[str, dict[str, Any]]:
    """Name -> what is drawn of it: places on both axes, and whether they are joined."""
    return {trace["name"]: trace for trace in page.evaluate(PLACES, plot) if trace["name"]}


@pytest.mark.parametrize("smooth", ["0", "0.9"])
def test_live_draws_evaluations_where_they_were(
    smooth: str, measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run={measured}&smooth={smooth}")
    drawn = curves(page, draw_chart(page, ".st-key-chart_success"))
    assert dict(zip(drawn["evaluation"]["x"], drawn["evaluation"]["y"], strict=True)) == EVALUATED
    assert drawn["evaluation"]["mode"] == "markers"
    trained = drawn["training"]["y"]
    assert (max(trained[10:]) - min(trained[10:]) < 0.1) is (smooth == "0.9")


def test_compare_draws_evaluations_where_they_were(
    measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    key = "eval/lake/success_rate"
    visit(page, f"{dashboard.url}/compare?runs={measured},tiny&smooth=0.9&metric={key}")
    drawn = curves(page, draw_chart(page, "[class*=st-key-compare-eval-lake]"))
    evaluated = drawn[measured]
    assert dict(zip(evaluated["x"], evaluated["y"], strict=True)) == EVALUATED


def test_rounding_errors_are_drawn_as_nothing(
    measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    """The scale goes to 1e-4: a line of 1e-14 is flat."""
    visit(page, f"{dashboard.url}/live?run={measured}")
    plot = draw_chart(page, ".st-key-chart_mismatch")
    ticks = page.locator(f"{plot} .ytick").all_text_contents()
    assert ticks[-1].replace("\u200b", "") == "1\u00d710\u22124"


def test_curves_are_named_at_their_ends_and_two_probes_are_no_line(
    measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run={measured}")
    plot = draw_chart(page, ".st-key-chart_success")
    names = ["training", "evaluation", "probe"]
    labels = [page.locator(f"{plot} .annotation-text", has_text=name) for name in names]
    assert page.locator(f"{plot} .legendtext").count() == 0
    assert curves(page, plot)["probe"]["mode"] == "markers"
    chart = page.locator(plot).bounding_box()
    boxes = sorted((label.bounding_box() for label in labels), key=lambda box: box["y"])
    for box in boxes:
        assert box["x"] + box["width"] <= chart["x"] + chart["width"]  # none is cut
    for upper, lower in itertools.pairwise(boxes):
        assert upper["y"] + upper["height"] <= lower["y"] + 3


TERMS = ("policy", "entropy", "kl", "value")


@pytest.mark.parametrize("size", [(1440, 900), (390, 844)], ids=["desktop", "phone"])
def test_a_legend_stands_below_its_title_whatever_the_width(
    size: tuple[int, int], dashboard: DashboardProcess, page: Any
) -> None:
    """Room was left as a telephone needs it: 60 pixels of nothing in a chart of 450."""
    norms = {f"gradient/{term}/all/norm": 1.0 for term in TERMS} | {"optim/grad_norm": 2.0}
    run = make_run(dashboard.root / f"five_terms_{size[0]}", 12, values=lambda step: norms)
    page.set_viewport_size({"width": size[0], "height": size[1]})
    visit(page, f"{dashboard.url}/live?run={run.name}")
    plot = draw_chart(page, ".st-key-chart_gradient")
    names = page.locator(f"{plot} .legendtext")
    until(lambda: names.count() == 5, "a legend", page=page)
    tops = [name.bounding_box()["y"] for name in names.all()]
    title = page.locator(f"{plot} .annotation").first.bounding_box()
    gap = min(tops) - title["y"] - title["height"]
    assert -4 <= gap <= 24


def test_the_synced_cursor_says_a_rate_in_percent(
    measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    """The mouse is on another chart; a rate was shown as 0.352."""
    visit(page, f"{dashboard.url}/live?run={measured}")
    success = draw_chart(page, ".st-key-chart_success")
    other = draw_chart(page, ".st-key-chart_gradient")
    hover(page, other, page.locator(f"{other} .scatterlayer .point").first)
    values = page.locator(f"{success} .echoscope-cursor")
    until(lambda: values.count() == 1, "cursor", page=page)
    assert values.inner_text().split("\n") == ["30 %", "35.2 %", "50 %"]


def test_neither_the_hover_box_nor_the_camera_hides_the_title(
    measured: str, dashboard: DashboardProcess, page: Any
) -> None:
    visit(page, f"{dashboard.url}/live?run={measured}")
    plot = draw_chart(page, ".st-key-chart_success")
    hover_text = hover(page, plot, page.locator(f"{plot} .scatterlayer .point").nth(20))
    assert [hover_text.count(name) for name in ("training", "evaluation")] == [1, 1]
    title = page.locator(f"{plot} .annotation").first.bounding_box()
    lines = page.locator(f"{plot} .hoverlayer .legend .traces")
    assert lines.count() == 2
    assert max(lines.nth(n).bounding_box()["height"] for n in range(2)) < 25  # one line each
    camera = page.locator(f"{plot} .modebar").bounding_box()
    assert camera["x"] > title["x"] + title["width"]


def test_charts_are_drawn_for_a_run_with_two_underscores_in_its_name(
    dashboard: DashboardProcess, page: Any
) -> None:
    run = make_run(dashboard.root / "ppo__lr1e-4__seed0", 12)
    visit(page, f"{dashboard.url}/live?run={run.name}")
    plot = draw_chart(page, ".st-key-chart_entropy")
    assert len(curves(page, plot)["Policy entropy"]["x"]) == 12
    assert "encountered an error" not in text_of(page)


def test_a_tile_of_a_long_run_tells_its_real_first_value_and_draws_no_waves(
    dashboard: DashboardProcess, page: Any
) -> None:
    """1,200 steps, drawn as means of 25: a range was told as its first step, its ends as waves."""
    run, noise = dashboard.root / "thinned", np.random.default_rng(0).normal(0, 0.2, 1_200)
    values = [1.51, *(1.9 - step / 1_200 + noise[step] for step in range(1, 1_200))]
    writer = open_writer(run)
    steps = range(len(values))
    add_steps(
        writer, run.name, steps, lambda step: {"policy/entropy": values[step]}, num_trajectories=0
    )
    writer.close(status="finished")
    visit(page, f"{dashboard.url}/live?run={run.name}")
    tile = page.locator(".es-tile", has_text="Policy entropy")
    until(lambda: "was 1.51 at step 0" in tile.inner_text(), "the first value", page=page)
    heights = tile.locator("svg path, svg polyline").first.evaluate(
        "line => Array.from({length: 49}, (_, n) => "
        "line.getPointAtLength(line.getTotalLength() * n / 48).y)"
    )
    assert np.corrcoef(np.arange(49), heights)[0, 1] > 0.9  # further down is a lower value
