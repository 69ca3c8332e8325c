"""The replay of a live run: newer steps are announced, and what is read stays where it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import add_steps, made_trajectory, open_writer
from shown_figures import listened_to, shown_lines
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.replay import news as replay_news
from echoscope.dashboard.replay.listing import Listed, ListRequest, listed
from echoscope.store.records import StepMetrics, TrajectoryOutcome
from echoscope.store.writer import RunWriter

OpenPage = Callable[..., AppTest]


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    """Of a run that goes on while its page is looked at."""
    opened = open_writer(tmp_path / "live")
    add_steps(opened, "live", range(2))
    yield opened
    opened.close(status="finished")


def metrics_of(step: int) -> StepMetrics:
    return StepMetrics(
        run_id="live", step=step, phase="train", policy_version=step, wall_time=2_000.0, values={}
    )


def newest(page: AppTest) -> str:
    """What the page says about newer steps."""
    assert not page.exception, page.exception
    line = shown_lines(page).get("newest")
    return line["line"]["text"] if line else ""


def test_a_step_behind_is_said_and_a_button_goes_to_the_newest(
    writer: RunWriter, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", tmp_path, run="live", step="0", trajectory="t00000000-00002")
    assert newest(page) == "The newest step is 1."
    assert page.query_params["trajectory"] == "t00000000-00002"
    page.button(key="replay_newest").click().run()
    assert page.number_input(key="url_step").value == 1
    assert newest(page) == ""


@pytest.mark.parametrize("chosen", [{"step": "1"}, {}])
def test_what_is_read_stays_where_it_is(
    writer: RunWriter, tmp_path: Path, open_page: OpenPage, chosen: dict[str, str]
) -> None:
    page = open_page("replay", tmp_path, run="live", **chosen)
    assert newest(page) == ""
    add_steps(writer, "live", range(2, 5))
    page.run()
    assert newest(page) == "The newest step is 4."
    assert page.number_input(key="url_step").value == 1
    page.button(key="replay_newest").click().run()
    assert page.number_input(key="url_step").value == 4


def test_a_run_before_its_first_trajectory_is_waited_for(
    tmp_path: Path, open_page: OpenPage
) -> None:
    young = open_writer(tmp_path / "young")
    page = open_page("replay", tmp_path, run="young")
    assert "nothing to replay" in "\n".join(str(element.value) for element in page.text)
    assert "position" in listened_to(page)
    young.close(status="finished")


def test_a_finished_run_has_no_news(tmp_path: Path, open_page: OpenPage) -> None:
    writer = open_writer(tmp_path / "done")
    add_steps(writer, "done", range(3))
    writer.close(status="finished")
    page = open_page("replay", tmp_path, run="done", step="0")
    assert newest(page) == ""
    assert "position" not in listened_to(page)


def test_an_update_that_came_to_the_list_is_news(
    writer: RunWriter, tmp_path: Path, serve_root: Callable[..., None]
) -> None:
    serve_root(tmp_path)
    some = [made_trajectory(2, 0), made_trajectory(2, 1)]
    kept = TrajectoryOutcome(trajectory_id=some[0].id, advantage=0.5, kept=True, drop_reason=None)
    writer.commit_step(metrics=[metrics_of(2)], trajectories=some, outcomes=[kept])
    writer.flush()
    now: Listed = listed("live", ListRequest(step=2, split="train"))
    assert not replay_news.has_come("live", now)  # the other one is pending still
    before_the_update = replace(now, rows=now.rows.assign(kept=None))
    assert replay_news.has_come("live", before_the_update)
