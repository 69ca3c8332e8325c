"""The server's protocol, as another language would speak it: requests, answers, refusals."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from serving_worlds import ask, error, served

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError, Observation
from echoscope.envs.worlds.grid.frozen_lake import FrozenLake
from echoscope.envs.worlds.remote.protocol import MAX_BODY_BYTES
from echoscope.envs.worlds.remote.server import serve
from echoscope.envs.worlds.remote.sessions import Limits, Served, Sessions

LAKE = Served(id="frozen_lake", params={"slip": 0.0, "size": 3, "holes": 1})
BANDIT = Served(id="bandit")
OPENING = {"protocol": 1}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served(LAKE, BANDIT) as address:
        yield address


@pytest.fixture
def session(url: str) -> str:
    """The address of a session in its first episode."""
    status, opened = ask(url, "/v1/sessions", {"protocol": 1, "env": "frozen_lake"})
    assert status == 200
    path = f"/v1/sessions/{opened['session']}"
    assert ask(url, f"{path}/reset", {"episode": 1, "seed": 3, "noise_seed": 0})[0] == 200
    return path


def written(observation: Observation) -> dict[str, Any]:
    """An observation without messages and picture, as docs/remote.md says."""
    return {
        "text": observation.text,
        "frame": observation.frame,
        "view": observation.view,
        "messages": [],
        "image": None,
    }


def test_a_session_plays_the_world(url: str) -> None:
    world = registry.make("frozen_lake", **LAKE.params)
    status, opened = ask(url, "/v1/sessions", {"protocol": 1, "env": "frozen_lake"})
    assert (status, opened["protocol"], opened["env"]) == (200, 1, "frozen_lake")
    assert opened["instructions"] == world.instructions()
    path = f"/v1/sessions/{opened['session']}"
    first = world.reset(5, 7)
    _, begun = ask(url, f"{path}/reset", {"episode": 1, "seed": 5, "noise_seed": 7})
    assert begun["observation"] == written(first)
    assert begun["task_key"] == world.task_key()
    assert ask(url, f"{path}/solve", {"episode": 1})[1] == {"actions": world.solve()}
    for number, action in enumerate(world.solve() or [], start=1):
        asked = {"episode": 1, "number": number, "action": action}
        _, answer = ask(url, f"{path}/step", asked)
        here = world.step(action)
        assert answer["result"] == {
            "observation": written(here.observation),
            "reward": here.reward,
            "terminated": here.terminated,
            "success": here.success,
            "is_valid": True,
            "is_effective": True,
            "info": dict(here.info),
        }
    assert answer["result"]["success"] is True
    assert ask(url, path, method="DELETE") == (200, {})
    assert error(ask(url, f"{path}/solve", {"episode": 1}))[:2] == (404, "unknown_session")


def test_a_repeated_step_or_reset_is_answered_from_memory(url: str, session: str) -> None:
    before = ask(url, "/health", method="GET")[1]["metrics"]
    asked = {"episode": 1, "number": 1, "action": "jump"}
    answers = [ask(url, f"{session}/step", asked) for _ in range(3)]
    assert answers[0] == answers[1] == answers[2]
    reset = {"episode": 2, "seed": 4, "noise_seed": 0}
    assert ask(url, f"{session}/reset", reset) == ask(url, f"{session}/reset", reset)
    after = ask(url, "/health", method="GET")[1]["metrics"]
    assert {key: after[key] - before[key] for key in ("steps", "resets", "repeated")} == {
        "steps": 1,
        "resets": 1,
        "repeated": 3,
    }


@pytest.mark.parametrize(
    ("verb", "content", "message"),
    [
        ("step", {"episode": 1, "number": 2, "action": "up"}, "step 2 was asked for after step 0"),
        ("step", {"episode": 2, "number": 1, "action": "up"}, "episode 2 is not the one that runs"),
        ("reset", {"episode": 1, "seed": 9, "noise_seed": 0}, "episode 1 is over"),
        ("solve", {"episode": 7}, "episode 7 is not the one that runs"),
    ],
)
def test_what_comes_late_or_early_changes_nothing(
    url: str, session: str, verb: str, content: dict[str, Any], message: str
) -> None:
    status, kind, told = error(ask(url, f"{session}/{verb}", content))
    assert (status, kind) == (409, "order")
    assert message in told
    assert ask(url, f"{session}/step", {"episode": 1, "number": 1, "action": "up"})[0] == 200


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"episode": 2, "seed": -1, "noise_seed": 0},
            "seed is -1, but must be greater than",
        ),
        ({"episode": 2, "seed": 2**63, "noise_seed": 0}, "but must be less than or equal to"),
        ({"episode": 2, "seed": 1.5, "noise_seed": 0}, "seed is 1.5"),
        ({"episode": True, "seed": 1, "noise_seed": 0}, "episode is True"),
        ({"episode": 2, "seed": 1}, "noise_seed is missing"),
    ],
)
def test_a_wrong_value_is_named_and_the_session_goes_on(
    url: str, session: str, content: dict[str, Any], message: str
) -> None:
    status, kind, told = error(ask(url, f"{session}/reset", content))
    assert (status, kind) == (400, "bad_request")
    assert message in told
    assert ask(url, f"{session}/solve", {"episode": 1})[0] == 200


def test_a_batch_answers_each_call(url: str) -> None:
    sessions = [
        ask(url, "/v1/sessions", {"protocol": 1, "env": "frozen_lake"})[1]["session"]
        for _ in range(3)
    ]
    start = {"episode": 1, "seed": 3, "noise_seed": 0}
    calls: list[Any] = [{"session": each, "verb": "reset", "content": start} for each in sessions]
    answers = ask(url, "/v1/batch", {"calls": calls})[1]["answers"]
    assert answers[0] == answers[1] == answers[2]
    steps: list[Any] = [
        {"session": each, "verb": "step", "content": {"episode": 1, "number": 1, "action": "up"}}
        for each in sessions
    ]
    bad: list[Any] = [
        {"session": "x", "verb": "solve", "content": {}},
        7,
        {**steps[0], "verb": "fly"},
    ]
    answers = ask(url, "/v1/batch", {"calls": [*steps, *bad]})[1]["answers"]
    assert [each["number"] for each in answers[:3]] == [1, 1, 1]
    kinds = [each["error"]["kind"] for each in answers[3:]]
    assert kinds == ["unknown_session", "bad_request", "bad_request"]
    assert error(ask(url, "/v1/batch", {"calls": []}))[:2] == (400, "bad_request")
    assert error(ask(url, "/v1/batch", {"calls": [0] * 1025}))[:2] == (400, "bad_request")


@pytest.mark.parametrize(
    ("content", "status", "kind", "message"),
    [
        ({"env": "frozen_lak"}, 404, "unknown_env", "did you mean 'frozen_lake'"),
        ({"env": "deepcoder"}, 404, "unknown_env", "not served here"),
        ({"env": "os:system"}, 404, "unknown_env", "not served here"),
        ({}, 404, "unknown_env", "env is None"),
        ({"env": ["bandit"]}, 404, "unknown_env", "not served here"),
        ({"env": "bandit", "protocol": 2}, 400, "protocol", "this server has 1"),
        ({"env": "bandit", "protocol": None}, 400, "protocol", "this server has 1"),
        ({"env": "bandit", "params": 3}, 400, "bad_request", "params is 3, but is an object"),
        ({"env": "frozen_lake", "params": {"slip": 1.0}}, 403, "params", "--client-params"),
        ({"env": "bandit", "params": {"arms": []}}, 403, "params", "may not set arms"),
    ],
)
def test_what_is_not_served_is_refused(
    url: str, content: dict[str, Any], status: int, kind: str, message: str
) -> None:
    found = error(ask(url, "/v1/sessions", {"protocol": 1, **content}))
    assert found[:2] == (status, kind)
    assert message in found[2]


@pytest.mark.parametrize("body", [b"", b"{}"])
def test_a_session_is_opened_for_a_client_that_says_its_protocol(url: str, body: bytes) -> None:
    found = error(ask(url, "/v1/sessions", data=body))
    assert found == (400, "protocol", "there is no protocol, and this server has 1")


def test_equal_parameters_may_be_named_and_others_where_the_server_says_so(url: str) -> None:
    same = {"protocol": 1, "env": "frozen_lake", "params": {"slip": 0, "size": 3}}
    assert ask(url, "/v1/sessions", same)[0] == 200
    with served(LAKE, limits=Limits(has_client_params=True)) as open_url:
        assert ask(open_url, "/v1/sessions", {"protocol": 1, "params": {"slip": 0.5}})[0] == 200
        found = error(ask(open_url, "/v1/sessions", {"protocol": 1, "params": {"slip": "x"}}))
        assert found[:2] == (400, "params")
        assert "slip is 'x', but must be a number" in found[2]


@pytest.mark.parametrize(
    ("path", "data", "headers", "status", "kind"),
    [
        ("/v1/sessions", b"{", {}, 400, "bad_request"),
        ("/v1/sessions", b"[]", {}, 400, "bad_request"),
        ("/v1/sessions", b'{"env": NaN}', {}, 400, "bad_request"),
        ("/v1/sessions", b'{"a": ' + b"[" * 100_000, {}, 400, "bad_request"),
        ("/v1/sessions", b'{"a": ' + b"9" * 5_000 + b"}", {}, 400, "bad_request"),
        ("/v1/sessions", b"\xff\xfe", {}, 400, "bad_request"),
        ("/v1/sessions", b"{}", {"Content_Type": "text/plain"}, 415, "content_type"),
        ("/v1/sessions", b"{}", {"Origin": "http://evil.example"}, 403, "origin"),
        ("/v1/sessions", b"{}", {"Host": "evil.example:80"}, 403, "host"),
        ("/v1/sessions", b" " * (MAX_BODY_BYTES + 1), {}, 413, "too_large"),
        ("/v1/nowhere", b"{}", {}, 404, "not_found"),
        ("/v1/sessions/../../etc/passwd/step", b"{}", {}, 404, "not_found"),
        ("/v1/batch/x", b"{}", {}, 404, "not_found"),
        ("/health", b"{}", {}, 405, "method"),
    ],
)
def test_bad_requests_are_one_clear_error(
    url: str, path: str, data: bytes, headers: dict[str, str], status: int, kind: str
) -> None:
    found = error(ask(url, path, data=data, **headers))
    assert found[:2] == (status, kind)
    assert found[2]
    assert "\n" not in found[2]


def test_a_request_that_does_not_end_is_given_up() -> None:
    with (
        served(BANDIT, body_s=0.1) as url,
        socket.create_connection(("127.0.0.1", urlsplit(url).port or 0), timeout=10) as connection,
    ):
        connection.sendall(
            b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Content-Length: 100\r\n\r\n{"
        )
        assert b"408" in connection.recv(1000).splitlines()[0]


def test_with_a_token_nobody_else_learns_more_than_that_it_lives() -> None:
    with served(BANDIT, token="open sesame") as url:
        assert ask(url, "/health", method="GET")[1] == {"status": "healthy", "protocol": 1}
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic eA=="}):
            assert error(ask(url, "/v1/sessions", {"protocol": 1}, **headers))[:2] == (401, "token")
        right = {"Authorization": "Bearer open sesame"}
        assert ask(url, "/v1/sessions", {"protocol": 1}, **right)[0] == 200
        assert ask(url, "/health", method="GET", **right)[1]["metrics"]["sessions"] == 1


def test_a_client_that_leaves_within_its_request_costs_one_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with served(BANDIT) as url:
        with socket.create_connection((urlsplit(url).hostname, urlsplit(url).port)) as half:
            half.sendall(
                b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                b'Content-Type: application/json\r\n\r\n{"prot'
            )
        while not ask(url, "/health", method="GET")[1]["metrics"]["refused"]:
            time.sleep(0.01)
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["a client left before its request to /v1/sessions had arrived"]
    assert not any(record.exc_info for record in caplog.records)


def test_the_mean_call_is_the_worlds_own_time_and_not_the_queue(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Eight calls of 100 ms, one at a time: the last one waits 700 ms and takes 100."""
    monkeypatch.setitem(registry.BUILTIN, "slow_lake", f"{__name__}:SlowLake")

    async def played() -> float:
        sessions = Sessions([Served(id="slow_lake")], Limits(max_calls=1))
        await asyncio.gather(*(sessions.open({"protocol": 1}) for _ in range(8)))
        return float(sessions.metrics()["mean_call_ms"])

    assert asyncio.run(played()) < 1000 * SlowLake.seconds


class SlowLake(FrozenLake):
    """A lake that takes time to be told of: two calls open it, the second one is slow."""

    seconds = 0.1

    def tools(self) -> Any:
        time.sleep(self.seconds)
        return super().tools()


def test_sessions_are_limited() -> None:
    with served(BANDIT, limits=Limits(max_sessions=2)) as url:
        opened = [ask(url, "/v1/sessions", OPENING)[1]["session"] for _ in range(2)]
        found = error(ask(url, "/v1/sessions", OPENING))
        assert found[:2] == (503, "full")
        assert "--max-sessions" in found[2]
        ask(url, f"/v1/sessions/{opened[0]}", method="DELETE")
        assert ask(url, "/v1/sessions", OPENING)[0] == 200


def test_sessions_that_nobody_uses_expire() -> None:
    with served(BANDIT, limits=Limits(max_sessions=2, idle_s=0.2)) as url:
        opened = [ask(url, "/v1/sessions", OPENING)[1]["session"] for _ in range(2)]
        time.sleep(0.4)
        assert ask(url, "/v1/sessions", OPENING)[0] == 200
        begin = {"episode": 1, "seed": 0, "noise_seed": 0}
        found = error(ask(url, f"/v1/sessions/{opened[0]}/reset", begin))
        assert found[:2] == (404, "unknown_session")
        assert ask(url, "/health", method="GET")[1]["metrics"]["expired"] >= 2


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
    with served(Served(id="odd_lake"), limits=Limits(call_s=1.0)) as url:
        paths = []
        for _ in range(2):
            path = f"/v1/sessions/{ask(url, '/v1/sessions', OPENING)[1]['session']}"
            ask(url, f"{path}/reset", {"episode": 1, "seed": 0, "noise_seed": 0})
            paths.append(path)
        asked = {"episode": 1, "number": 1, "action": action}
        found = error(ask(url, f"{paths[0]}/step", asked))
        assert found[:2] == (status, kind)
        assert message in found[2]
        assert error(ask(url, f"{paths[0]}/step", asked))[:2] == (404, "unknown_session")
        assert ask(url, f"{paths[1]}/step", {**asked, "action": "up"})[0] == 200
        metrics = ask(url, "/health", method="GET")[1]["metrics"]
        assert (metrics["failed"], metrics["timed_out"], metrics["hanging_calls"]) == (
            kind == "env_error",
            kind == "timeout",
            action == "hang",
        )
        OddLake.waiting.set()


# -- starting -------------------------------------------------------------------------------------


def test_others_are_let_in_only_with_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ECHOSCOPE_ENV_TOKEN", raising=False)
    with pytest.raises(
        EnvUnavailableError, match=r"refusing to listen on 0\.0\.0\.0.*ECHOSCOPE_ENV_TOKEN"
    ):
        serve([BANDIT], Limits(), address="0.0.0.0", on_ready=print)
    monkeypatch.setenv("ECHOSCOPE_ENV_TOKEN", "short")
    with pytest.raises(EnvParamsError, match="has 5 characters, but must be"):
        serve([BANDIT], Limits(), on_ready=print)


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
        serve(worlds, Limits(), port=0, on_ready=print)


def test_a_taken_port_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}: "):
            serve([BANDIT], Limits(), port=port, on_ready=print)
