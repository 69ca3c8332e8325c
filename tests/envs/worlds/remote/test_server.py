"""The server, as OpenEnv or another language would speak to it: answers and refusals."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving_worlds import ask, error, served
from websockets.sync.client import ClientConnection, connect

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake
from echoscope.envs.worlds.remote import server
from echoscope.envs.worlds.remote.protocol import MAX_BODY_BYTES
from echoscope.envs.worlds.remote.server import serve
from echoscope.envs.worlds.remote.sessions import Served, SessionLimits

LAKE = Served(id="frozen_lake", params={"slip": 0.0, "size": 3, "holes": 1})
BANDIT = Served(id="bandit")
ROOM = Served(id="spatial", params={"questions": ["direction"]})


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(LAKE, BANDIT, ROOM) as address:
        yield address


def counts(url: str) -> dict[str, int]:
    told: dict[str, int] = ask(url, "/health", method="GET")[1]["counts"]
    return told


def test_reset_step_and_state_are_openenvs(url: str) -> None:
    world = registry.make("frozen_lake", **LAKE.params)
    first = world.reset(3, 0)
    status, begun = ask(url, "/reset", {"env": "frozen_lake", "seed": 3, "episode_id": "e-1"})
    assert status == 200
    assert begun["observation"] == {
        "text": first.text,
        "messages": [],
        "image": None,
        "legal_actions": list(world.legal_actions()),
    }
    assert (begun["reward"], begun["done"]) == (None, False)
    assert begun["metadata"]["task_key"] == world.task_key()
    assert begun["metadata"]["frame"] == first.frame
    actions = world.solve() or []
    assert ask(url, "/solve", {"episode_id": "e-1"})[1] == {"actions": actions}
    for action in actions:
        _, answer = ask(url, "/step", {"action": {"text": action}, "episode_id": "e-1"})
        here = world.step(action)
        assert answer["observation"]["text"] == here.observation.text
        assert (answer["reward"], answer["done"]) == (here.reward, here.terminated)
        assert answer["metadata"]["info"] == dict(here.info)
    assert answer["metadata"]["success"] is True
    _, state = ask(url, "/state?episode_id=e-1", method="GET")
    assert (state["episode_id"], state["step_count"]) == ("e-1", len(actions))
    # The same name begins anew, in the same session.
    again = ask(url, "/reset", {"seed": 3, "episode_id": "e-1"})[1]
    assert again["observation"] == begun["observation"]
    assert ask(url, "/close", {"episode_id": "e-1"}) == (200, {})
    assert error(ask(url, "/solve", {"episode_id": "e-1"}))[:2] == (404, "unknown_episode")


def test_what_people_may_see_is_not_in_an_observation(url: str) -> None:
    first = registry.make("spatial", **ROOM.params).reset(4, 0)
    begun = ask(url, "/reset", {"env": "spatial", "seed": 4, "episode_id": "room"})[1]
    assert begun["metadata"]["frame"] == first.frame
    assert "frame" not in begun["observation"]
    schema = ask(url, "/schema", method="GET")[1]
    assert schema["action"]["required"] == ["text"]
    assert "frame" not in schema["observation"]["properties"]
    assert ask(url, "/metadata", method="GET")[1]["name"] == "frozen_lake, bandit, spatial"


def test_without_a_name_or_a_seed(url: str) -> None:
    seeds = {ask(url, "/reset", {"env": "bandit"})[1]["metadata"]["seed"] for _ in range(3)}
    assert len(seeds) == 3
    assert ask(url, "/state", method="GET")[1]["episode_id"] == "default"


def test_a_repeated_request_is_answered_from_memory(url: str) -> None:
    before = counts(url).get("repeated", 0)
    begin = {"episode_id": "twice", "env": "bandit", "number": 1}
    assert ask(url, "/reset", begin) == ask(url, "/reset", begin)  # of a drawn seed
    step = {"episode_id": "twice", "number": 2, "action": {"text": "jump"}}
    assert ask(url, "/step", step) == ask(url, "/step", step)
    assert ask(url, "/state?episode_id=twice", method="GET")[1]["step_count"] == 1
    assert counts(url)["repeated"] == before + 2
    status, kind, told = error(ask(url, "/step", {**step, "number": 1}))
    assert (status, kind, told) == (409, "order", "request 1 comes after request 2")


@pytest.mark.parametrize(
    ("path", "content", "status", "kind", "message"),
    [
        ("/reset", {"seed": -1}, 400, "bad_request", "seed is -1, but must be greater than"),
        ("/reset", {"seed": 2**63}, 400, "bad_request", "must be less than or equal to"),
        ("/reset", {"seed": 1.5}, 400, "bad_request", "seed is 1.5"),
        ("/reset", {"number": True}, 400, "bad_request", "number is True"),
        ("/reset", {"episode_id": "x" * 256}, 400, "bad_request", "at most 255 characters"),
        ("/step", {"action": "up"}, 400, "bad_request", "action is 'up'"),
        ("/step", {"action": {"text": 3}}, 400, "bad_request", "action.text is 3"),
        ("/step", {"episode_id": "nobody"}, 404, "unknown_episode", "'nobody' runs: reset it"),
        ("/open", {"env": "frozen_lak"}, 404, "unknown_env", "did you mean 'frozen_lake'"),
        ("/open", {"env": "os:system"}, 404, "unknown_env", "not served here"),
        ("/open", {"episode_id": "new"}, 404, "unknown_env", "env is None"),
        ("/open", {"env": ["bandit"]}, 400, "bad_request", "must be a valid string"),
        ("/open", {"env": "bandit", "params": 3}, 400, "bad_request", "params is 3"),
        ("/open", {"env": "frozen_lake", "params": {"slip": 1.0}}, 403, "params", "--client-par"),
        ("/open", {"env": "bandit", "params": {"arms": []}}, 403, "params", "may not set arms"),
    ],
)
def test_a_wrong_value_is_named(
    url: str, path: str, content: dict[str, Any], status: int, kind: str, message: str
) -> None:
    refused = error(ask(url, path, content))
    assert refused[:2] == (status, kind)
    assert message in refused[2]


def test_equal_parameters_may_be_named_and_others_where_the_server_says_so(url: str) -> None:
    same = {"env": "frozen_lake", "params": {"slip": 0, "size": 3}}
    assert ask(url, "/open", same)[0] == 200
    with served(LAKE, limits=SessionLimits(has_client_params=True)) as open_url:
        assert ask(open_url, "/open", {"params": {"slip": 0.5}})[0] == 200
        refused = error(ask(open_url, "/open", {"params": {"slip": "x"}}))
        assert refused[:2] == (400, "params")
        assert "slip is 'x', but must be a number" in refused[2]


@pytest.mark.parametrize(
    ("path", "data", "headers", "status", "kind"),
    [
        ("/open", b"{", {}, 400, "bad_request"),
        ("/open", b"[]", {}, 400, "bad_request"),
        ("/open", b'{"env": NaN}', {}, 400, "bad_request"),
        ("/open", b'{"a": ' + b"[" * 100_000, {}, 400, "bad_request"),
        ("/open", b'{"a": ' + b"9" * 5_000 + b"}", {}, 400, "bad_request"),
        ("/open", b"\xff\xfe", {}, 400, "bad_request"),
        ("/open", b"{}", {"Content_Type": "text/plain"}, 415, "content_type"),
        ("/open", b"{}", {"Origin": "http://evil.example"}, 403, "origin"),
        ("/open", b"{}", {"Host": "evil.example:80"}, 403, "host"),
        ("/open", b" " * (MAX_BODY_BYTES + 1), {}, 413, "too_large"),
        ("/nowhere", b"{}", {}, 404, "not_found"),
        ("/../../etc/passwd", b"{}", {}, 404, "not_found"),
        ("/health", b"{}", {}, 405, "method"),
    ],
)
def test_bad_requests_are_one_clear_error(
    url: str, path: str, data: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    refused = error(ask(url, path, data=data, **headers))
    assert refused[:2] == (status, kind)
    assert refused[2]
    assert "\n" not in refused[2]


def test_a_request_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "BODY_S", 0.1)
    with (
        served(BANDIT) as url,
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=10) as connection,
    ):
        connection.sendall(
            b"POST /open HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert b"408" in connection.recv(1000).splitlines()[0]


def test_with_a_token_nobody_else_learns_more_than_that_it_lives() -> None:
    with served(BANDIT, token="open sesame") as url:
        assert ask(url, "/health", method="GET")[1] == {"status": "healthy", "protocol": 1}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
            assert error(ask(url, "/open", **headers))[:2] == (401, "token")
        right = {"Authorization": "Bearer open sesame"}
        assert ask(url, "/open", **right)[0] == 200
        assert ask(url, "/health", method="GET", **right)[1]["sessions"] == 1


def test_sessions_are_limited() -> None:
    with served(BANDIT, limits=SessionLimits(max_sessions=2)) as url:
        for name in ("a", "b"):
            assert ask(url, "/open", {"episode_id": name})[0] == 200
        refused = error(ask(url, "/open", {"episode_id": "c"}))
        assert refused[:2] == (503, "full")
        assert "--max-sessions" in refused[2]
        ask(url, "/close", {"episode_id": "a"})
        assert ask(url, "/open", {"episode_id": "c"})[0] == 200


def test_sessions_that_nobody_uses_expire() -> None:
    with served(BANDIT, limits=SessionLimits(max_sessions=1, idle_s=0.2)) as url:
        ask(url, "/reset", {"episode_id": "a"})
        time.sleep(0.4)
        assert error(ask(url, "/step", {"episode_id": "a"}))[:2] == (404, "unknown_episode")
        assert ask(url, "/open", {"episode_id": "b"})[0] == 200
        assert counts(url)["expired"] == 1


def talk(socket: ClientConnection, message: object) -> dict[str, Any]:
    socket.send(message if isinstance(message, str) else json.dumps(message))
    answer: dict[str, Any] = json.loads(socket.recv(timeout=10))
    return answer


def test_each_web_socket_has_an_episode_of_its_own(url: str) -> None:
    world = registry.make("frozen_lake", **LAKE.params)
    address = url.replace("http", "ws") + "/ws"
    begin = {"type": "reset", "data": {"env": "frozen_lake", "seed": 3}}
    with connect(address) as first_socket, connect(address) as two:
        first = talk(first_socket, begin)
        assert first["type"] == "observation"
        assert first["data"]["observation"]["text"] == world.reset(3, 0).text
        assert talk(two, begin)["data"]["observation"] == first["data"]["observation"]
        action = (world.solve() or [""])[0]
        stepped = talk(first_socket, {"type": "step", "data": {"text": action}})
        assert stepped["data"]["observation"]["text"] == world.step(action).observation.text
        assert talk(first_socket, {"type": "state"})["data"]["step_count"] == 1
        assert talk(two, {"type": "state"})["data"]["step_count"] == 0
        for bad in ("{", "[]", {"type": "fly"}, {"type": "step", "data": 3}, {"type": "step"}):
            assert talk(first_socket, bad)["data"]["code"] == "VALIDATION_ERROR"
        first_socket.send(json.dumps({"type": "close"}))
    sessions = ask(url, "/health", method="GET")[1]["sessions"]
    with connect(address) as three:
        talk(three, begin)
        assert ask(url, "/health", method="GET")[1]["sessions"] == sessions + 1


class OddLake(FrozenLake):
    """A lake that fails as its actions say."""

    waiting = threading.Event()

    def step(self, action: str) -> Any:
        match action:
            case "hang":
                self.waiting.wait(30)
            case "raise":
                raise ValueError("deep\nwater")
            case "exit":
                raise SystemExit(3)
            case "nonsense":
                return None
        return super().step(action)


@pytest.mark.parametrize(
    ("action", "status", "kind", "message"),
    [
        ("raise", 500, "env_error", "the environment failed: ValueError: deep?water"),
        ("exit", 500, "env_error", "RuntimeError: SystemExit: 3"),
        ("nonsense", 500, "env_error", "must return a StepResult"),
        ("hang", 504, "timeout", "step took more than 1 s (--timeout)"),
    ],
)
def test_a_world_that_fails_ends_its_session_and_no_other(
    action: str, status: int, kind: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    OddLake.waiting = threading.Event()
    monkeypatch.setitem(registry.BUILTIN, "odd_lake", f"{__name__}:OddLake")
    with served(Served(id="odd_lake"), limits=SessionLimits(call_s=1.0)) as url:
        for name in ("a", "b"):
            ask(url, "/reset", {"episode_id": name, "seed": 0})
        step = {"episode_id": "a", "action": {"text": action}}
        refused = error(ask(url, "/step", step))
        assert refused[:2] == (status, kind)
        assert message in refused[2]
        assert error(ask(url, "/step", step))[:2] == (404, "unknown_episode")
        assert ask(url, "/step", {"episode_id": "b", "action": {"text": "up"}})[0] == 200
        assert counts(url)["failed" if kind == "env_error" else "timed_out"] == 1
        OddLake.waiting.set()


# -- starting -------------------------------------------------------------------------------------


def test_others_are_let_in_only_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHOSCOPE_ENV_TOKEN", raising=False)
    with pytest.raises(
        EnvUnavailableError, match=r"refusing to listen on 0\.0\.0\.0.*ECHOSCOPE_ENV_TOKEN"
    ):
        serve([BANDIT], SessionLimits(), address="0.0.0.0", on_ready=print)
    monkeypatch.setenv("ECHOSCOPE_ENV_TOKEN", "short")
    with pytest.raises(EnvParamsError, match="has 5 characters, but must be"):
        serve([BANDIT], SessionLimits(), on_ready=print)


@pytest.mark.parametrize(
    ("worlds", "message"),
    [
        ([], "at least one"),
        ([BANDIT, BANDIT], "must be different ids"),
        ([Served(id="bandti")], "did you mean 'bandit'"),
        ([Served(id="bandit", params={"pairs": "x"})], "pairs is 'x'"),
    ],
)
def test_what_cannot_be_served_is_said_at_the_start(worlds: list[Served], message: str) -> None:
    with pytest.raises(Exception, match=message):
        serve(worlds, SessionLimits(), port=0, on_ready=print)


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            serve([BANDIT], SessionLimits(), port=port, on_ready=print)
