"""Diagnosis and Compare: what they show of runs that have something to show."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from app_text import app_text
from made_run import add_steps, made_trajectory, open_writer, step_metrics
from streamlit.testing.v1 import AppTest
from tables import columns_of

from echoscope.dashboard.data import verdict_cache as judging
from echoscope.store.query.metric_keys import RESPONSE_LENGTH
from echoscope.store.records import Alarm, AlarmSeverity, AlarmState, StepMetrics

OpenPage = Callable[..., AppTest]


def raised(alarm_id: str, rule: str, step: int, severity: str, **more: Any) -> Alarm:
    fields = {
        "alarm_id": alarm_id,
        "rule": rule,
        "severity": AlarmSeverity(severity),
        "state": AlarmState.RAISED,
        "step": step,
        "onset_step": step - 1,
        "metric": "m",
        "value": 0.0,
        "baseline": 1.0,
        "threshold": 0.5,
        "window": 3,
        "message": f"{rule} happened",
        "advice": "do this",
    }
    return Alarm(**(fields | more))


def run_with(root: Path, name: str, success: float, alarms: list[Alarm]) -> Path:
    """Five steps, an evaluation at the last, and alarms."""
    writer = open_writer(root / name)
    add_steps(writer, name, range(5), lambda step: {"policy/entropy": success + step})
    values = {
        "eval/lake/success_rate": success,
        "eval/lake/success_rate_low": success - 0.1,
        "eval/lake/success_rate_high": success + 0.1,
        "eval/other/success_rate": success / 2,
    }
    metrics = StepMetrics(
        run_id=name, step=5, phase="eval", policy_version=5, wall_time=1_005.0, values=values
    )
    writer.commit_step(metrics=[metrics], trajectories=[], outcomes=[], alarms=alarms)
    writer.close(status="finished")
    return root / name


@pytest.fixture
def root(tmp_path: Path) -> Path:
    run_with(
        tmp_path,
        "bad",
        0.4,
        [
            raised("a1", "TEMPLATE_COLLAPSE", 3, "critical", evidence=("t00000003-00001",)),
            raised("a2", "GRADIENT_SPIKE", 2, "warning"),
            raised(
                "a2",
                "GRADIENT_SPIKE",
                4,
                "warning",
                state=AlarmState.CLEARED,
                message="norms are back",
            ),
        ],
    )
    run_with(tmp_path, "good", 0.8, [])
    return tmp_path


def tables(page: AppTest) -> str:
    assert not page.exception
    return "".join(e.proto.body for e in page.get("html") if "es-wide" in e.proto.body)


def test_alarms_are_listed_the_open_and_serious_ones_first(root: Path, open_page: OpenPage) -> None:
    text = tables(open_page("diagnosis", root, run="bad"))
    assert text.index("TEMPLATE_COLLAPSE") < text.index("GRADIENT_SPIKE")
    assert "cleared, was warning" in text
    assert "norms are back" in text


def test_a_run_without_alarms_says_so(root: Path, open_page: OpenPage) -> None:
    assert "None was raised." in app_text(open_page("diagnosis", root, run="good"))


def test_a_run_that_is_being_judged_is_not_called_anything_yet(
    root: Path, open_page: OpenPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge is slow here, so that the first answer is no verdict."""
    slow = threading.Event()
    judge = judging._judged_on

    def wait_and_judge(*args: Any) -> Any:
        slow.wait(30)
        return judge(*args)

    monkeypatch.setattr(judging, "_judged_on", wait_and_judge)
    page = open_page("diagnosis", root, run="good")
    assert not page.exception
    assert "being judged" in app_text(page)
    assert "insufficient" not in app_text(page)
    slow.set()


def test_numbers_of_four_digits_are_written_out(tmp_path: Path, open_page: OpenPage) -> None:
    """Tokens said 3.56e+03 in a group of runs, on the page Compare and in the list of episodes."""
    tokens = {"a": 3_500.0, "b": 3_560.0, "c": 3_610.0}
    for name, value in tokens.items():
        writer = open_writer(tmp_path / name)
        made = [made_trajectory(0, index) for index in range(4)]
        paid = [replace(t, turns=(replace(t.turns[0], reward=value),)) for t in made]
        row = {RESPONSE_LENGTH: value}
        writer.commit_step(metrics=[step_metrics(name, 0, row)], trajectories=paid)
        writer.commit_step(metrics=[step_metrics(name, 1, row)], trajectories=[])
        writer.close(status="finished")
    runs = columns_of(open_page("runs", tmp_path, group="algo", cols=RESPONSE_LENGTH))
    assert runs[RESPONSE_LENGTH] == ["3,557 (3,420 to 3,693)"]
    compared = open_page("compare", tmp_path, runs="a,b,c", metric=RESPONSE_LENGTH, by="run")
    table = compared.dataframe[0].value
    assert list(table["level"])[1] == "3,560 (3,560 to 3,560) tokens"
    assert list(table["gap"])[1].startswith("higher: +60 (+60 to +60) tokens;")
    episodes = open_page("replay", tmp_path, run="b", step="0", success="solved")
    assert columns_of(episodes)["return"] == ["3,560"] * 2
    assert "mean return 3,560" in app_text(episodes)
