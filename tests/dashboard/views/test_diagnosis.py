"""The Diagnosis page: what it says after an earlier step, and one number for one thing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from app_text import app_html, app_text
from made_run import CONFIG, made_trajectory, open_writer, step_metrics, template_record
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data import queries
from echoscope.diagnostics.read.sources import Opened
from echoscope.diagnostics.read.table import TableBuilder
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics, Trajectory

OpenPage = Callable[..., AppTest]
LAST = 40
COLLAPSE = 21
"""From this step on no reply parses any more."""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run whose replies stop parsing at step 21; its text is measured at every fifth step."""
    writer = open_writer(tmp_path / "made")
    for step in range(LAST + 1):
        is_well = step < COLLAPSE
        values = {
            "rollout/action_valid_frac": 0.95 if is_well else 0.1,
            "rollout/success_rate": 0.6 if is_well else 0.05,
            "text/dependence": 0.8,
        }
        metrics = StepMetrics(
            run_id="made",
            step=step,
            phase="train",
            policy_version=step,
            wall_time=1_000.0 + step,
            values=values,
        )
        records = [template_record(step, 0.3 if is_well else 0.58)] if step % 5 == 0 else []
        writer.commit_step(
            metrics=[metrics],
            trajectories=[made_trajectory(step, n) for n in range(4)],
            diagnostics=records,
        )
    writer.close(status="finished")
    return tmp_path


def whole_text(page: AppTest) -> str:
    """Text and HTML as a person reads them: without what keeps Markdown from acting."""
    return (app_text(page) + app_html(page)).replace("\\", "").replace("\u2060", "")


@pytest.mark.long
def test_the_verdict_is_that_of_the_chosen_step(root: Path, open_page: OpenPage) -> None:
    early = open_page("diagnosis", root, run="made", step="15")
    late = open_page("diagnosis", root, run="made")
    assert not early.exception
    assert "after step 15" in whole_text(early)
    assert "Format collapse" not in whole_text(early)
    assert "Format collapse" in whole_text(late)


def test_a_verdict_after_a_step_reads_nothing_later(
    root: Path, serve_root: Callable[..., None]
) -> None:
    serve_root(root)
    assert queries.verdict_at("made", 15).kinds == ()
    assert queries.verdict_at("made", 15).last_step == 15
    assert "FORMAT_COLLAPSE" in queries.verdict_at("made", LAST).kinds
    newest = queries.verdict("made", wait_s=60.0)
    assert queries.verdict_at("made", LAST).text == newest.text


@pytest.mark.long
def test_the_slider_moves_the_verdict_and_the_rest(root: Path, open_page: OpenPage) -> None:
    page = open_page("diagnosis", root, run="made")
    page.select_slider(key="diagnosis_step").set_value(10).run()
    assert page.query_params["step"] == "10"
    assert "after step 10" in whole_text(page)
    assert "Step 10: 30 % of the reasonings of the first turns share this template" in whole_text(
        page
    )


@pytest.mark.long
def test_one_share_for_one_template(root: Path, open_page: OpenPage) -> None:
    """The verdict quotes the share that the monitor stored, as the page does."""
    page = open_page("diagnosis", root, run="made")
    assert "Step 40: 58 % of the reasonings of the first turns share this template" in whole_text(
        page
    )
    reader = open_run(root / "made")
    opened = Opened(table=TableBuilder().build(), reader=reader)
    late = opened.exemplars(["TEMPLATE_COLLAPSE"])
    assert (
        late.template == '58 % of the reasonings of the first turns share one template: "Go ___.".'
    )
    assert opened.exemplars(["TEMPLATE_COLLAPSE"], upto=17).template.startswith("30 %")


def of_two_groups_that_differ(index: int) -> Trajectory:
    """In two of eight groups one of both siblings succeeds, in the others none."""
    made = made_trajectory(0, index)
    if index < 4:
        return made
    return replace(made, turns=(replace(made.turns[0], reward=0.0),), is_success=False)


@pytest.mark.parametrize(
    ("slip", "sentence", "never"),
    [
        (0.9, "Do not filter by reward spread here", "tends to pay"),
        (0.0, "Filtering by reward spread tends to pay here", "Do not filter"),
    ],
)
def test_no_filter_is_praised_where_luck_decides_the_reward(
    slip: float, sentence: str, never: str, tmp_path: Path, open_page: OpenPage
) -> None:
    """The headline said that the task must change, and the box below that filtering pays."""
    task = {"env": "frozen_lake", "params": {"slip": slip}}
    writer = open_writer(tmp_path / "made", config={**CONFIG, "envs": {"train": [task]}})
    writer.commit_step(
        metrics=[step_metrics("made", 0, {"rollout/success_rate": 0.125})],
        trajectories=[of_two_groups_that_differ(index) for index in range(16)],
    )
    writer.close(status="finished")
    page_text = whole_text(open_page("diagnosis", tmp_path, run="made"))
    assert sentence in page_text
    assert never not in page_text
