"""JSON beside the pages: which runs there are, and what open pages ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alarm_events import alarm_event
from made_run import add_steps, make_run, open_writer
from starlette.applications import Starlette
from starlette.testclient import TestClient

from echoscope.dashboard.charts import live as live_charts
from echoscope.dashboard.charts.run_figures import Controls
from echoscope.dashboard.data import queries
from echoscope.dashboard.web import api
from echoscope.store.records import CommandAction
from echoscope.store.steer.commands import new_command
from echoscope.store.steer.steering import send
from echoscope.store.writer import RunWriter

Serve = Callable[..., None]
KNOBS = {"optim.lr": {"type": "number", "exclusiveMinimum": 0, "value": 0.1}}
SECRET = "what the model said"


@pytest.fixture
def client(tmp_path: Path, serve_root: Serve) -> TestClient:
    serve_root(tmp_path)
    return TestClient(Starlette(routes=api.routes()))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[RunWriter]:
    writer = open_writer(tmp_path / "a", live_knobs=KNOBS)
    add_steps(writer, "a", range(3), text=SECRET)
    yield writer
    writer.close(status="finished")


def test_the_list_of_runs(client: TestClient, live: RunWriter, tmp_path: Path) -> None:
    make_run(tmp_path / "done", 2)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "run.json").write_text("{")
    answer = client.get("/api/runs").json()
    assert {row["run_id"]: row["status"] for row in answer["runs"]} == {
        "a": "live",
        "done": "finished",
    }
    assert answer["num_unreadable"] == 1
    assert answer["as_of"] > 0


# -- pulses: what a page asks once a second ------------------------------------------------------


def changed(before: dict[str, Any], after: dict[str, Any]) -> set[str]:
    names = before.keys() - {"as_of", "lines"}
    assert names == after.keys() - {"as_of", "lines"}
    return {name for name in names if before[name] != after[name]}


def pulse_of(client: TestClient) -> dict[str, Any]:
    """The pulse of the run once its verdict has been worked out."""
    queries.verdict("a", wait_s=60.0)
    pulse: dict[str, Any] = client.get("/api/runs/a/pulse").json()
    return pulse


def test_a_pulse_stays_while_nothing_happens(client: TestClient, live: RunWriter) -> None:
    assert changed(pulse_of(client), pulse_of(client)) == set()


def test_a_step_changes_position_and_lines_and_nothing_that_is_drawn(
    client: TestClient, live: RunWriter
) -> None:
    before = pulse_of(client)
    assert before["lines"]["status"]["text"] == "live, step 2 of 100"
    add_steps(live, "a", range(3, 4), text=SECRET)
    after = pulse_of(client)
    assert changed(before, after) - {"verdict"} == {"position"}
    assert after["lines"]["status"]["text"] == "live, step 3 of 100"
    assert after["lines"]["newest"]["text"] == "The newest step is 3."


def test_commands_alarms_metrics_and_the_end_change_a_pulse(
    client: TestClient, live: RunWriter, tmp_path: Path
) -> None:
    pulse = pulse_of(client)
    send(tmp_path / "a", new_command("a", CommandAction.PAUSE))
    before, pulse = pulse, pulse_of(client)
    assert changed(before, pulse) - {"verdict"} == {"position", "commands"}
    alarm = alarm_event(
        "entropy:2",
        2,
        rule="ENTROPY_COLLAPSE",
        onset_step=1,
        metric="policy/entropy",
        value=0.1,
        baseline=1.0,
        threshold=0.5,
        window=5,
        message=SECRET,
    )
    live.record_alarms([alarm])
    live.flush()
    before, pulse = pulse, pulse_of(client)
    assert "alarms" in changed(before, pulse)
    assert SECRET not in json.dumps(pulse)
    add_steps(live, "a", range(3, 4), lambda step: {"mine/new": 1.0}, text=SECRET)
    before, pulse = pulse, pulse_of(client)
    assert "keys" in changed(before, pulse)
    live.close(status="finished")
    before, pulse = pulse, pulse_of(client)
    assert "status" in changed(before, pulse)
    assert pulse["lines"]["status"]["text"] == "finished, step 3 of 100"


def test_a_run_that_goes_has_another_pulse_and_is_no_error(
    client: TestClient, live: RunWriter, tmp_path: Path
) -> None:
    before = pulse_of(client)
    (tmp_path / "a").rename(tmp_path.parent / "elsewhere")
    answer = client.get("/api/runs/a/pulse")
    assert answer.status_code == 200
    assert changed(before, answer.json()) == set(before) - {"as_of", "lines"}
    assert answer.json()["lines"] == {}
    assert client.get("/api/runs/a/chart?name=entropy").status_code == 204
    (tmp_path.parent / "elsewhere").rename(tmp_path / "a")


@pytest.mark.parametrize("run_id", ["x" * 300, "\u00e9" * 255])
def test_a_name_that_is_too_long_for_a_folder_is_no_run(
    client: TestClient, live: RunWriter, run_id: str
) -> None:
    assert client.get(f"/api/runs/{run_id}/pulse").json()["lines"] == {}
    assert client.get(f"/api/runs/{run_id}/tiles").status_code == 404


# -- charts that fetch themselves ----------------------------------------------------------------


def test_a_chart_is_as_the_page_would_draw_it(client: TestClient, live: RunWriter) -> None:
    answer = client.get("/api/runs/a/chart?name=entropy&x=step&smooth=0.5")
    head, _, spec = answer.text.partition("\n")
    assert json.loads(head)["source"]["position"] == pulse_of(client)["position"]
    assert json.loads(head)["source"]["address"].startswith("/api/runs/a/chart?name=entropy&")
    assert json.loads(spec)["layout"]
    page = live_charts.snapshot("a", Controls(smooth=0.5), is_followed=True)
    assert answer.content == live_charts.sent(page, "entropy")


@pytest.mark.parametrize("query", ["", "name=nothing", "name=metrics_", "name=metrics_no/such"])
def test_a_chart_that_does_not_exist_is_no_content(
    client: TestClient, live: RunWriter, query: str
) -> None:
    answer = client.get(f"/api/runs/a/chart?{query}")
    assert (answer.status_code, answer.content) == (204, b"")


def test_what_a_model_wrote_is_withheld(client: TestClient, live: RunWriter) -> None:
    assert SECRET not in client.get("/api/runs/a/tiles").text
    assert SECRET not in client.get("/api/runs").text


@pytest.mark.parametrize("run_id", ["nope", "..", "%2e%2e", "..%2fa", "a%00"])
def test_an_unknown_run(client: TestClient, live: RunWriter, run_id: str) -> None:
    answer = client.get(f"/api/runs/{run_id}/tiles")
    assert answer.status_code == 404
