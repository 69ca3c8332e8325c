"""The replay of a live run: newer steps are announced, and followed where nobody chose a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from echoscope.dashboard import queries, replay_news
from echoscope.dashboard.replay_list import COLUMNS
from echoscope.dashboard.replay_sources import Source
from echoscope.store.records import StepMetrics, TrajectoryOutcome
from echoscope.store.writer import RunWriter
from made_run import add_steps, made_trajectory, open_writer
from streamlit.testing.v1 import AppTest
from tables import columns_of

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


def captions(page: AppTest) -> str:
    return "\n".join(str(found.value) for found in page.caption)


def test_a_step_behind_is_said_and_a_button_goes_to_the_newest(
    writer: RunWriter, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", tmp_path, run="live", step="0", trajectory="t00000000-00002")
    assert "1 newer step" in captions(page)
    assert page.query_params["trajectory"] == "t00000000-00002"
    page.button(key="replay_newest").click().run()
    assert columns_of(page)["id"][0] == "t00000001-00000"
    assert "newer" not in captions(page)


def test_who_chose_something_stays_there(
    writer: RunWriter, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", tmp_path, run="live", step="1")
    add_steps(writer, "live", range(2, 5))
    page.run()
    assert "3 newer steps" in captions(page)
    assert columns_of(page)["id"][0] == "t00000001-00000"


def test_who_chose_nothing_is_taken_along(
    writer: RunWriter, tmp_path: Path, open_page: OpenPage
) -> None:
    page = open_page("replay", tmp_path, run="live")
    add_steps(writer, "live", range(2, 3))
    page.run()
    assert columns_of(page)["id"][0] == "t00000002-00000"
    assert "newer" not in captions(page)


def test_a_finished_run_has_no_news(tmp_path: Path, open_page: OpenPage) -> None:
    writer = open_writer(tmp_path / "done")
    add_steps(writer, "done", range(3))
    writer.close(status="finished")
    assert "newer" not in captions(open_page("replay", tmp_path, run="done", step="0"))


def test_an_update_that_came_to_the_list_is_news(
    writer: RunWriter, tmp_path: Path, serve_root: Callable[..., None]
) -> None:
    serve_root(tmp_path)
    some = [made_trajectory(2, 0), made_trajectory(2, 1)]
    kept = TrajectoryOutcome(trajectory_id=some[0].id, advantage=0.5, kept=True, drop_reason=None)
    writer.commit_step(metrics=[metrics_of(2)], trajectories=some, outcomes=[kept])
    writer.flush()
    now = queries.listing("live", 2)[list(COLUMNS)]
    listed = Source(title="", rows=now, if_empty="", step=2)
    assert not replay_news.has_come("live", listed)  # the other one is pending still
    before_the_update = replace(listed, rows=now.assign(kept=None))
    assert replay_news.has_come("live", before_the_update)
