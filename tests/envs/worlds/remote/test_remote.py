"""The client: the whole interface over the wire, and servers that are not to be trusted."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from costs import HANG_S, without_hanging
from PIL import Image
from serving_worlds import ServerProcess, ask, free_port, served

from echoscope.envs import registry
from echoscope.envs.base import (
    EnvError,
    EnvParamsError,
    EnvUnavailableError,
    Observation,
    TextEnv,
)
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.checks.episodes import HOSTILE_ACTIONS
from echoscope.envs.turns.runner import TurnRunner
from echoscope.envs.turns.turn import TurnSettings
from echoscope.envs.worlds.bandit import Bandit
from echoscope.envs.worlds.remote.http_client import HttpAnswer, HttpClient, NoConnectionError
from echoscope.envs.worlds.remote.remote import RemoteError, UnreachableError
from echoscope.envs.worlds.remote.sessions import Served, SessionLimits
from echoscope.text.pictures import encode_picture

SERVED = {
    "frozen_lake": {"slip": 0.3, "observation": "both"},
    "price_list": {"items": 1},
    "sudoku": {},
    "gymnasium": {"env": "Taxi-v4"},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    worlds = [Served(id=env_id, params=params) for env_id, params in SERVED.items()]
    with served(*worlds) as address:
        yield address


@pytest.mark.parametrize("env_id", SERVED)
def test_every_method_is_that_of_the_world(url: str, env_id: str) -> None:
    here, there = (
        registry.make(env_id, **SERVED[env_id]),
        registry.make("remote", url=url, env=env_id),
    )
    assert there.tools() == here.tools()
    assert (there.num_tasks, there.reports_success) == (here.num_tasks, here.reports_success)
    for seed in (0, 2**63 - 1):
        first = here.reset(seed, 1)
        assert there.reset(seed, 1) == first
        assert there.instructions() == here.instructions()
        # A world without keys of its own gets that of its first observation, as in a run.
        assert there.task_key() == (here.task_key() or there.task_key())
        assert there.solve() == here.solve()
        actions = [*(here.solve() or here.legal_actions())[:2], *HOSTILE_ACTIONS]
        for action in actions:
            assert there.guesses() == here.guesses()
            result = here.step(action)
            assert there.step(action) == result
            assert there.legal_actions() == here.legal_actions()
            assert there.invalid_notice(action) == here.invalid_notice(action)
            if result.terminated:
                break
    there.close()
    there.close()


@pytest.mark.long
def test_the_contract_holds_over_the_wire(url: str) -> None:
    report = check_env("remote", {"url": url, "env": "frozen_lake"})
    assert report.failed == {}
    assert "processes" in report.passed


@pytest.mark.parametrize("action", ["\U0001f600", "\udfff"])
def test_surrogates_reach_the_world_as_they_were_sampled(action: str) -> None:
    here = registry.make("bandit")
    with served(Served(id="bandit")) as url:
        there = registry.make("remote", url=url)
        assert there.reset(0, 0) == here.reset(0, 0)
        assert there.step(action) == here.step(action)


def test_the_server_may_need_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(Served(id="bandit"), token="open sesame") as url:
        monkeypatch.delenv("ECHOSCOPE_ENV_TOKEN", raising=False)
        with pytest.raises(RemoteError, match="answered 401: send the header"):
            registry.make("remote", url=url)
        monkeypatch.setenv("MY_TOKEN", "open sesame")
        registry.make("remote", url=url, token_env="MY_TOKEN").reset(0, 0)
        monkeypatch.setenv("MY_TOKEN", "two\nlines")
        with pytest.raises(EnvParamsError, match="the token in MY_TOKEN must be printable"):
            registry.make("remote", url=url, token_env="MY_TOKEN")


def test_a_wrong_token_env_url_or_id_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOPE", raising=False)
    with pytest.raises(EnvParamsError, match="token_env is NOPE, but this variable is not set"):
        registry.make("remote", url=url, token_env="NOPE")
    with pytest.raises(RemoteError, match=r"env is 'xyz', which is not served here \(served: froz"):
        registry.make("remote", url=url, env="xyz")


def test_a_server_that_was_never_there_is_to_be_started() -> None:
    with pytest.raises(UnreachableError, match="on that machine with `echoscope envs serve ENV`"):
        registry.make("remote", url=f"http://127.0.0.1:{free_port()}")


def test_a_world_is_left_when_it_is_closed() -> None:
    with served(Served(id="bandit"), limits=SessionLimits(max_sessions=1)) as url:
        for _ in range(3):
            registry.make("remote", url=url).close()
        world = registry.make("remote", url=url)
        with pytest.raises(RemoteError, match="answered 503: all 1 sessions are taken"):
            registry.make("remote", url=url)
        world.close()


def test_an_expired_session_ends_its_episode_and_the_next_one_begins() -> None:
    with served(Served(id="frozen_lake"), limits=SessionLimits(idle_s=1.0)) as url:
        world = registry.make("remote", url=url)
        world.reset(0, 0)
        time.sleep(1.2)
        with pytest.raises(RemoteError, match=r"answered 404: no episode .* It has expired"):
            world.step("up")
        local = registry.make("frozen_lake")
        assert world.reset(1, 1) == local.reset(1, 1)
        assert world.step("up") == local.step("up")


PICTURE = encode_picture(Image.new("RGB", (4, 4)))


class Painter(Bandit):
    """A bandit that shows a picture of its own."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return replace(super().reset(seed, noise_seed), image=PICTURE)


def test_a_picture_of_the_world_crosses_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTIN, "test:Painter", f"{__name__}:Painter")
    with served(Served(id="test:Painter")) as url:
        assert registry.make("remote", url=url).reset(0, 0).image == PICTURE


# -- a server that is away ------------------------------------------------------------------------


def test_nobody_there_is_said_at_once() -> None:
    refused = pytest.raises(
        UnreachableError, match=r"cannot reach http://127\.0\.0\.1:\d+: .*refused"
    )
    with without_hanging(), refused:
        registry.make("remote", url=f"http://127.0.0.1:{free_port()}", wait_s=HANG_S)


@pytest.mark.long
def test_new_episodes_wait_for_a_server_that_was_there() -> None:
    port = free_port()
    first = ServerProcess("frozen_lake", port=port)
    worlds = [registry.make("remote", url=first.url, wait_s=20.0) for _ in range(2)]
    worlds[0].reset(0, 0)
    first.kill()
    with pytest.raises(RemoteError, match="cannot reach"):
        worlds[0].step("up")
    threading.Thread(target=lambda: ServerProcess("frozen_lake", port=port), daemon=True).start()
    local = registry.make("frozen_lake")
    for world in worlds:
        assert world.reset(3, 4) == local.reset(3, 4)


def test_all_who_wait_give_up_together() -> None:
    with served(Served(id="bandit")) as url:
        worlds = [registry.make("remote", url=url, wait_s=1.0) for _ in range(60)]
    with without_hanging():  # not a minute: only the first one waits its second
        for world in worlds:
            with pytest.raises(UnreachableError, match=r"away for \d+ s \(wait_s is 1\)"):
                world.reset(0, 0)


# -- a server that is not to be trusted -----------------------------------------------------------

OPENED = {
    "protocol": 1,
    "tools": [],
    "num_tasks": None,
    "has_own_notice": False,
    "instructions": "Play.",
    "reports_success": True,
}
FACTS = {"task_key": "0123456789abcdef", "instructions": "Play.", "reports_success": True}
BEGUN = {
    "observation": {"text": "Start", "legal_actions": ["go"]},
    "reward": None,
    "done": False,
    "metadata": FACTS,
}
STEPPED = {
    "observation": {"text": "On", "legal_actions": ["go"]},
    "reward": 0.5,
    "done": False,
    "metadata": {**FACTS, "success": False, "info": {"n": None}},
}
GOOD: Mapping[str, Any] = {"open": OPENED, "reset": BEGUN, "step": STEPPED}
TOOL = {"name": "go", "description": "", "parameters": {}}
Talk = Callable[[socket.socket], None]


def response(content: Any, status: str = "200 OK", **headers: str) -> bytes:
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


@contextmanager
def scripted(answers: Mapping[str, bytes | Talk]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers the last word of a path as told, else well; and what it was asked."""
    asked: list[bytes] = []
    stop = threading.Event()

    def talk(connection: socket.socket) -> None:
        with connection:
            while not stop.is_set():
                data = b""
                while b"\r\n\r\n" not in data:
                    chunk = connection.recv(65536)
                    if not chunk:
                        return
                    data += chunk
                head, _, body = data.partition(b"\r\n\r\n")
                fields = head.lower().partition(b"content-length: ")[2]
                while len(body) < int(fields.partition(b"\r\n")[0] or 0):
                    body += connection.recv(65536)
                asked.append(head.partition(b"\r\n")[0])
                name = head.split(b" ")[1].decode().rpartition("/")[2]
                answer = answers.get(name, response(GOOD.get(name, {})))
                if callable(answer):
                    answer(connection)
                    return
                connection.sendall(answer)

    def quietly(connection: socket.socket) -> None:
        try:
            talk(connection)
        except OSError:
            return  # who asked has gone

    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threading.Thread(target=quietly, args=(connection,), daemon=True).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", asked
    finally:
        stop.set()
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def make(url: str, **params: Any) -> TextEnv:
    return registry.make("remote", url=url, timeout_s=1.0, wait_s=0.0, **params)


def play(url: str) -> None:
    """Open a session, begin an episode, play a step."""
    world = make(url)
    world.reset(0, 0)
    world.step("go")


def test_the_scripted_server_can_be_played() -> None:
    with scripted({}) as (url, _):
        world = make(url)
        assert world.reset(0, 0).text == "Start"
        result = world.step("go")
        assert (result.observation.text, result.reward) == ("On", 0.5)
        assert result.info["n"] != result.info["n"]


def hang(connection: socket.socket) -> None:
    connection.recv(1)


def changed(path: str, value: Any, of: Mapping[str, Any]) -> bytes:
    content = json.loads(json.dumps(of))
    container = content
    *parents, last = path.split(".")
    for parent in parents:
        container = container[parent]
    container[last] = value
    return response(content)


WRONG: dict[str, tuple[str, bytes | Talk, str]] = {
    "hangs": ("step", hang, "did not answer within 1 s"),
    "500": ("step", response(b"<h1>oops</h1>", "500 No"), "answered 500 with something else"),
    "500 in words": (
        "step",
        response({"error": {"kind": "x", "message": "a\nb\x1b[2J" * 900}}, "500 No"),
        r"answered 500: a\?b\?\[2J",
    ),
    "an error that is none": ("step", response({"error": 3}, "500 No"), "with something else"),
    "no JSON": ("step", response(b"nonsense"), "no JSON object of this protocol"),
    "a list": ("step", response([]), "this is no JSON object"),
    "NaN": (
        "step",
        changed("reward", 1, STEPPED).replace(b'"reward": 1', b'"reward":NaN'),
        "no JSON object of this protocol",
    ),
    "not HTTP": ("step", b"SSH-2.0-OpenSSH\r\n\r\n", "cannot reach"),
    "hangs up": ("step", lambda connection: None, "cannot reach"),
    "redirect": (
        "step",
        response({}, "302 Found", Location="http://127.0.0.1:1/"),
        "redirects, and that is not followed",
    ),
    "no episode": (
        "step",
        response({"error": {"kind": "unknown_episode", "message": "gone"}}, "404 Not Found"),
        "answered 404: gone",
    ),
    "no reward": ("step", changed("reward", None, STEPPED), "there is no reward"),
    "a reward in words": ("step", changed("reward", "1", STEPPED), "reward is '1'"),
    "a flag as a number": ("step", changed("done", 1, STEPPED), "done is 1"),
    "info in words": ("step", changed("metadata.info", {"n": "x"}, STEPPED), "a valid number"),
    "a huge number": ("step", changed("reward", 10**400, STEPPED), "finite number"),
    "a lone surrogate": (
        "step",
        changed("observation.text", "\ud800", STEPPED),
        "no JSON object of this protocol",
    ),
    "a message of nobody": (
        "step",
        changed("observation.messages", [{"role": "root", "content": "x"}], STEPPED),
        "messages.0.role is 'root'",
    ),
    "an image that is none": (
        "step",
        changed("observation.image", "AAAA", STEPPED),
        "the image of an observation",
    ),
    "an image in no base64": (
        "step",
        changed("observation.image", "\u00e9", STEPPED),
        "must be valid base64",
    ),
    "actions that are no texts": (
        "step",
        changed("observation.legal_actions", [1], STEPPED),
        "a valid string",
    ),
    "a key that is none": ("reset", changed("metadata.task_key", "../..", BEGUN), "task_key is"),
    "a chat that is none": (
        "reset",
        changed("observation.messages", [{"role": "tool", "content": "x"}], BEGUN),
        "the first observation has the roles",
    ),
    "another version": ("open", changed("protocol", 2, OPENED), "protocol is 2, but must be 1"),
    "a tool that is none": ("open", changed("tools", [{"name": "a b"}], OPENED), "is missing"),
    "a name that no tool has": (
        "open",
        changed("tools", [{"name": "a b", "description": "", "parameters": {}}], OPENED),
        "'a b' is no name of a tool",
    ),
    "no tasks": ("open", changed("num_tasks", 0, OPENED), "num_tasks is 0"),
    "too many tools": ("open", changed("tools", [TOOL] * 129, OPENED), "have at most 128 items"),
}


@pytest.mark.parametrize(("verb", "answer", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_one_sentence_in_bounded_time(
    verb: str, answer: bytes | Talk, message: str
) -> None:
    with scripted({verb: answer}) as (url, _):
        with without_hanging(), pytest.raises(EnvError, match=message) as caught:
            play(url)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 700
        str(caught.value).encode("ascii")


@pytest.mark.long
def test_leaving_a_server_that_hangs_takes_two_seconds_in_all() -> None:
    with scripted({"close": hang}) as (url, _):
        worlds = [make(url) for _ in range(40)]
        with without_hanging():
            for world in worlds:
                world.close()


@pytest.mark.parametrize("name", ["hangs", "500", "NaN", "no episode", "hangs up"])
def test_in_a_run_it_ends_the_episode_with_a_reason(name: str) -> None:
    verb, answer, _ = WRONG[name]
    answers: dict[str, bytes | Talk] = {verb: answer}
    settings = TurnSettings(max_turns=3, max_actions_per_turn=1)
    with scripted(answers) as (url, _):
        stack = TurnRunner(lambda: make(url), settings)
        stack.reset(0, 0)
        turn = stack.step_turn(["go"], is_well_formed=True)
        assert (turn.stop_reason, turn.success, turn.reward) == ("env_error", None, 0.0)
        answers.clear()
        opening = stack.reset(1, 0)
        assert (opening.observation.text, opening.error) == ("Start", None)
        assert stack.step_turn(["go"], is_well_formed=True).stop_reason is None


def test_a_lost_answer_is_asked_for_again() -> None:
    """A connection that breaks after a step was sent: the same numbered step goes out again."""
    times: list[int] = []

    def break_once(connection: socket.socket) -> None:
        times.append(1)
        if len(times) > 1:
            connection.sendall(response(STEPPED, Connection="close"))

    with scripted({"step": break_once}) as (url, asked):
        world = make(url)
        world.reset(0, 0)
        assert world.step("go").reward == 0.5
        assert [line for line in asked if b"/step" in line] == [b"POST /step HTTP/1.1"] * 2


def test_a_lost_answer_is_not_played_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real server played the step, but its answer is lost on the way."""
    ask_server = HttpClient.ask
    lost: list[int] = []

    def lose_one(self: HttpClient, *args: Any, **options: Any) -> HttpAnswer:
        answer = ask_server(self, *args, **options)
        if b'"success"' in answer.body and not lost:
            lost.append(1)
            raise NoConnectionError("cut off", is_worth_a_retry=True)
        return answer

    monkeypatch.setattr(HttpClient, "ask", lose_one)
    with served(Served(id="game_2048")) as url:
        here, there = registry.make("game_2048"), registry.make("remote", url=url)
        here.reset(3, 5)
        there.reset(3, 5)
        for _ in range(4):
            for action in here.legal_actions():
                assert there.step(action) == here.step(action)
        assert lost == [1]
        assert ask(url, "/health", method="GET")[1]["counts"]["repeated"] == 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({}, "needs a server: start `echoscope envs serve ENV`"),
        ({"url": "ftp://x"}, "must look like http://127.0.0.1:8700"),
        ({"url": "http://"}, "must look like"),
        ({"url": "http://user:secret@host"}, "must look like"),
        ({"url": "http://a b"}, "must look like"),
        ({"url": "http://h:99999"}, "must look like"),
        ({"url": "http://h/\r\nX: y"}, "must look like"),
        ({"url": "http://h", "timeout_s": 0}, "timeout_s is 0, but must lie above 0"),
        ({"url": "http://h", "wait_s": -1}, "wait_s is -1"),
        ({"url": "http://h", "wiat_s": 1}, "did you mean 'wait_s'"),
        ({"url": "http://127.0.0.1:1", "params": {"a": {1}}}, "params cannot be sent as JSON"),
    ],
)
def test_wrong_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvError, match=message):
        registry.make("remote", **params)


def test_an_unknown_world_lists_those_served(url: str) -> None:
    with pytest.raises(EnvUnavailableError, match="did you mean 'frozen_lake'"):
        registry.make("remote", url=url, env="frozen_lak")
    with pytest.raises(EnvUnavailableError, match="may not set size: leave it out, or serve with"):
        registry.make("remote", url=url, env="frozen_lake", params={"size": 3})
