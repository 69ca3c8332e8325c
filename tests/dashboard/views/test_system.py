"""The page System: the bar of phases is what SQL says, and machines that were not measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from app_text import app_text
from made_run import make_run
from shown_figures import shown_figures
from streamlit.testing.v1 import AppTest

from echoscope.dashboard.data.progress import PHASES, STEP, engines_words, shares
from echoscope.store.reader import open_run

OpenPage = Callable[..., AppTest]


def values(step: int) -> dict[str, float]:
    return {
        "time/step_s": 10.0 + step,
        "time/rollout_s": 6.0,
        "time/update_s": 3.0,
        "collection/engine_wait_s": 1.5,
        "collection/env_wait_s": 3.0,
        "system/cpu_frac": 0.5,
        "system/gpu/0/busy_frac": 0.5,
        "system/gpu/1/busy_frac": 0.9,
        "system/gpu/1/power_w": float("nan"),
    }


def figures(page: AppTest) -> list[dict[str, Any]]:
    assert not page.exception
    return [json.loads(figure.text) for figure in shown_figures(page).values()]


def test_phases_are_one_bar_of_what_sql_says(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "r", 30, values=values)
    bar, waiting, busy, power, *charts = figures(open_page("system", tmp_path, run="r"))
    query = "SELECT avg(value) AS v FROM metrics WHERE key = 'time/step_s' AND step >= 10"
    total = open_run(tmp_path / "r").sql(query)["v"][0].as_py()
    shares = {trace["name"]: trace["x"][0] for trace in bar["data"]}
    assert shares == {
        "rollouts": pytest.approx(100 * 6 / total),
        "update": pytest.approx(100 * 3 / total),
        "rest": pytest.approx(100 * (total - 9) / total),
    }
    assert [trace["x"] for trace in waiting["data"]] == [[25.0], [50.0]]
    assert waiting["data"][0]["text"] == ["engine had nothing to sample: 25 %"]
    assert [trace["name"] for trace in busy["data"]] == ["GPU 0", "GPU 1"]
    assert power["layout"]["annotations"][-1]["text"] == "No value was measured."
    assert len(charts) >= 4


def test_a_run_without_such_metrics_says_so(tmp_path: Path, open_page: OpenPage) -> None:
    make_run(tmp_path / "r", 3)
    page = open_page("system", tmp_path, run="r")
    assert "No step of this run says how long it took" in app_text(page)
    assert "is not measured in this run" in app_text(page)


def test_parts_that_take_longer_than_the_step_leave_no_rest() -> None:
    rows = [("time/step_s", 5.0, 3, 1, 3), ("time/rollout_s", 6.0, 3, 1, 3)]
    means = pd.DataFrame(rows, columns=["key", "seconds", "num_steps", "first", "last"])
    parts = shares(means, STEP, PHASES)
    assert parts is not None
    assert parts.seconds == {"rollouts": 6.0}


def test_ranks_and_replicas_are_named_where_there_are_several() -> None:
    several = {"trainer": {"ranks": 4}, "engine": {"replicas": 2}}
    assert engines_words(several).startswith("4 ranks train and 2 replicas sample.")
    assert engines_words({"trainer": {"ranks": 1}}) == ""
