"""JSON beside the pages: how runs stand, and commands as `echoscope ctl` sends them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from echoscope.dashboard import api
from echoscope.store.commands import read_commands
from echoscope.store.records import CommandAction
from echoscope.store.writer import RunWriter
from made_run import add_steps, make_run, open_writer
from starlette.applications import Starlette
from starlette.testclient import TestClient

Serve = Callable[..., None]
KNOBS = {"optim.lr": {"type": "number", "exclusiveMinimum": 0, "value": 0.1}}
SENT = {"x-echoscope-command": "1"}
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
        "a": "running",
        "done": "finished",
    }
    assert answer["num_unreadable"] == 1
    assert answer["as_of"] > 0
    assert [row["run_id"] for row in client.get("/api/runs?filter=do").json()["runs"]] == ["done"]


def test_the_status_of_a_run(client: TestClient, live: RunWriter) -> None:
    answer = client.get("/api/runs/a/status")
    status = answer.json()
    assert (status["status"], status["step"], status["steps"]) == ("running", 2, 100)
    assert (status["is_paused"], status["num_commands_waiting"]) == (False, 0)
    assert status["verdict"]["state"] == "insufficient evidence"
    assert answer.headers["cache-control"] == "no-store"


def test_what_a_model_wrote_is_withheld(client: TestClient, live: RunWriter) -> None:
    assert SECRET not in client.get("/api/runs/a/status").text
    assert SECRET not in client.get("/api/runs").text


@pytest.mark.parametrize("run_id", ["nope", "..", "%2e%2e", "..%2fa", "a%00"])
def test_an_unknown_run(client: TestClient, live: RunWriter, run_id: str) -> None:
    answer = client.get(f"/api/runs/{run_id}/status")
    assert answer.status_code == 404


def test_a_command_reaches_the_mailbox(client: TestClient, live: RunWriter, tmp_path: Path) -> None:
    wish = {"action": "set", "settings": {"optim.lr": 0.01}, "reason": "too fast"}
    answer = client.post("/api/runs/a/commands", json=wish, headers=SENT)
    assert (answer.status_code, answer.json()["outcome"]) == (202, "sent")
    [command], refused = read_commands(tmp_path / "a", "a")
    assert refused == {}
    assert command.command_id == answer.json()["command_id"]
    assert (command.action, command.settings) == (CommandAction.SET, {"optim.lr": 0.01})
    assert command.reason == "too fast"
    assert command.issued_by.endswith("(dashboard)")
    assert client.get("/api/runs/a/status").json()["num_commands_waiting"] == 1


@pytest.mark.parametrize(
    ("wish", "status", "why"),
    [
        ({"action": "explode"}, 400, "'explode' is not a valid"),
        ({}, 400, "is not a valid"),
        ({"action": ["stop"]}, 400, "is not a valid"),
        ({"action": "set"}, 400, "nothing to set"),
        ({"action": "set", "settings": {"optim.l": 1}}, 400, "did you mean 'optim.lr'?"),
        ({"action": "set", "settings": {"optim.lr": "x"}}, 400, "optim.lr is 'x'"),
        ({"action": "set", "settings": {"optim.lr": -1}}, 400, "optim.lr is -1"),
        ({"action": "stop", "settings": {"optim.lr": 1}}, 400, "settings belong to 'set'"),
        ({"action": "set", "settings": [1]}, 400, "must be an object"),
        ({"action": "stop", "extra": 1}, 400, "unknown fields 'extra'"),
        ({"action": "stop", "reason": "x" * 3000}, 400, "the reason has 3000 characters"),
        ([], 400, "must be an object"),
    ],
)
def test_commands_that_are_refused(
    client: TestClient, live: RunWriter, tmp_path: Path, wish: object, status: int, why: str
) -> None:
    answer = client.post("/api/runs/a/commands", json=wish, headers=SENT)
    assert answer.status_code == status
    assert why in answer.json()["error"]["text"]
    assert read_commands(tmp_path / "a", "a") == ([], {})


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"content-type": "application/json"}, b'{"action": "stop"}', 403),
        ({**SENT, "content-type": "text/plain"}, b'{"action": "stop"}', 415),
        ({**SENT, "content-type": "application/x-www-form-urlencoded"}, b"action=stop", 415),
        ({**SENT, "content-type": "application/json"}, b"{", 400),
        ({**SENT, "content-type": "application/json"}, b"[" * 60_000, 400),
        ({**SENT, "content-type": "application/json"}, b" " * 70_000, 413),
    ],
)
def test_requests_that_a_form_could_make_are_refused(
    client: TestClient, live: RunWriter, headers: dict[str, str], body: bytes, status: int
) -> None:
    answer = client.post("/api/runs/a/commands", content=body, headers=headers)
    assert answer.status_code == status


def test_a_run_that_has_ended_takes_no_commands(client: TestClient, tmp_path: Path) -> None:
    make_run(tmp_path / "done")
    answer = client.post("/api/runs/done/commands", json={"action": "stop"}, headers=SENT)
    assert answer.status_code == 409
    assert answer.json()["error"]["text"] == "the run is finished"


def test_a_read_only_dashboard_sends_nothing(
    client: TestClient, live: RunWriter, tmp_path: Path, serve_root: Serve
) -> None:
    serve_root(tmp_path, is_read_only=True)
    answer = client.post("/api/runs/a/commands", json={"action": "stop"}, headers=SENT)
    assert answer.status_code == 403
    assert read_commands(tmp_path / "a", "a") == ([], {})
