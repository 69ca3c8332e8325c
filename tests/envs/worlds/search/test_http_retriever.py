"""A retrieval server that answers well, and one that does everything wrong."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from costs import HANG_S, without_hanging

from echoscope.envs import registry
from echoscope.envs.base import StepResult, TextEnv
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.worlds.search.passages import (
    MADE_PASSAGES,
    MAX_ANSWER_BYTES,
    HttpRetriever,
    PassageIndex,
    read_passages,
)

pytest.importorskip("bm25s")
Behaviour = Callable[["Handler", dict[str, Any]], None]


class Handler(BaseHTTPRequestHandler):
    """Does with a request what the test tells its server to do."""

    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.requests.append(body)
        try:
            self.server.behaviour(self, body)
        except OSError:
            self.close_connection = True  # the client has gone

    def answer(self, content: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour: Behaviour = lambda handler, body: handler.answer(b"{}")
        self.requests: list[dict[str, Any]] = []
        self.is_over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/retrieve"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.is_over.set()
        made.shutdown()
        thread.join()


def world_of(server: Server, **params: Any) -> TextEnv:
    world = registry.make("search_qa", retriever="http", url=server.url, **params)
    world.reset(4, 0)
    return world


def saying(content: object, status: int = 200) -> Behaviour:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return lambda handler, body: handler.answer(data, status)


def news(result: StepResult) -> str:
    """What a search showed, without the question below it."""
    passages, _, question = result.observation.text.rpartition("\n")
    assert question.startswith("Question: ")
    return passages


def documents(*texts: str) -> dict[str, Any]:
    return {"result": [[{"document": {"contents": text}, "score": 1.5} for text in texts]]}


def test_the_shape_of_search_r1(server: Server) -> None:
    server.behaviour = saying(
        {"result": [[
            {"document": {"id": "7", "contents": '"Paris"\nParis is a city.'}, "score": 0.5},
            {"id": "8", "title": "Rome", "text": "Rome is a city."},
            "Bonn\nBonn is a city.",
            {"document": {"contents": "one more than asked for"}},
        ]]}
    )  # fmt: skip
    result = world_of(server, results=3).step("search[São Paulo]")
    assert server.requests == [{"queries": ["São Paulo"], "topk": 3, "return_scores": True}]
    assert news(result) == (
        "[1] Paris: Paris is a city.\n[2] Rome: Rome is a city.\n[3] Bonn: Bonn is a city."
    )
    assert (result.is_valid, result.is_effective, result.info["search_failed"]) == (True, True, 0.0)


@pytest.mark.parametrize(
    "entry",
    [{"id": 3, "content": "Paris is big.", "score": 1}, {"document": {"text": "Paris is big."}}],
)
def test_the_shape_of_ragen(server: Server, entry: dict[str, Any]) -> None:
    server.behaviour = saying({"query": "x", "results": [entry], "num_results": 1})
    result = world_of(server, protocol="ragen", results=5).step("search[city]")
    assert server.requests == [{"query": "city", "top_k": 5}]
    assert news(result) == "[1] Paris is big."


def test_the_same_corpus_behind_a_server_gives_the_same_episodes(server: Server) -> None:
    index = PassageIndex(read_passages(MADE_PASSAGES))

    def retrieve(handler: Handler, body: dict[str, Any]) -> None:
        (query,) = body["queries"]
        passages = index.search(query, body["topk"])
        rows = [{"id": p.id, "contents": f'"{p.title}"\n{p.text}'} for p in passages]
        answer = {"result": [[{"document": row, "score": 1.0} for row in rows]]}
        handler.answer(json.dumps(answer).encode())

    server.behaviour = retrieve
    there, here = world_of(server), registry.make("search_qa")
    for seed in range(5):
        assert there.reset(seed, 0) == here.reset(seed, 0)
        for action in here.solve() or []:
            assert there.step(action) == here.step(action)


def test_nothing_found_is_no_failure(server: Server) -> None:
    server.behaviour = saying({"result": [[]]})
    result = world_of(server).step("search[zebra]")
    assert news(result) == "The search gave no passage."
    assert result.info["search_failed"] == 0.0


def _flood(handler: Handler, body: dict[str, Any]) -> None:
    handler.wfile.write(b"HTTP/1.0 200 OK\r\n\r\n")
    for _ in range(100):
        handler.wfile.write(b" " * 2**20)


BAD_ANSWERS: dict[str, tuple[Behaviour, str]] = {
    "not json": (saying(b"<html>busy</html>"), "answered with text that is not JSON"),
    "not text": (saying(b"\xff\xfe\x00\x80"), "answered with text that is not JSON"),
    "empty": (saying(b""), "answered with text that is not JSON"),
    "NaN": (
        saying(b'{"result": [[{"document": {"contents": "x"}, "score": NaN}]]}'),
        "answered with text that is not JSON",
    ),
    "deep": (saying(b"[" * 200_000), "answered with text that is not JSON"),
    "a huge number": (saying(b'{"result": ' + b"9" * 50_000 + b"}"), "not JSON"),
    "a list": (saying([1]), "answered with JSON that has no list 'result' for the query"),
    "an error": (saying({"error": "no index"}), "no list 'result' for the query"),
    "two queries": (saying({"result": [[], []]}), "no list 'result' for the query"),
    "null": (saying({"result": [None]}), "no list 'result' for the query"),
    "no text": (saying({"result": [[{"document": {"id": 1}}]]}), "entry 1 has no text"),
    "a number": (saying({"result": [[{"document": 5}]]}), "entry 1 has no text"),
    "blank": (saying({"result": [[{"contents": " \x00 "}]]}), "entry 1 has no text"),
    "404": (saying(b"gone", 404), "answered with status 404"),
    "302": (saying(b"", 302), "answered with status 302"),
    "100 MB": (_flood, f"answered with more than {MAX_ANSWER_BYTES >> 20} MiB"),
    "no status line": (lambda h, b: h.wfile.write(b"hello\r\n\r\n"), "cannot be reached"),
    "endless headers": (
        lambda h, b: h.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 10_000),
        "cannot be reached",
    ),
    "500": (saying(b"oops", 500), "answered with status 500"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_ANSWERS)
def test_a_bad_answer_is_said_in_words_and_the_episode_goes_on(server: Server, name: str) -> None:
    server.behaviour, sentence = BAD_ANSWERS[name]
    world = world_of(server, timeout_s=HANG_S)
    with without_hanging():
        result = world.step("search[Kyoto]")
    assert result.observation.text.startswith("The search failed: the retriever ")
    assert sentence in result.observation.text
    assert (result.is_valid, result.is_effective, result.terminated) == (True, False, False)
    assert (result.reward, result.info["search_failed"]) == (0.0, 1.0)
    server.behaviour = saying(documents("Kyoto lies in Japan."))
    assert news(world.step("search[Kyoto]")) == "[1] Kyoto lies in Japan."


def _hang(handler: Handler, body: dict[str, Any]) -> None:
    handler.server.is_over.wait(HANG_S)


def test_a_server_that_hangs_costs_the_time_limit_and_no_more(server: Server) -> None:
    server.behaviour = _hang
    world = world_of(server, timeout_s=0.3)
    with without_hanging():
        result = world.step("search[Kyoto]")
    assert news(result) == ("The search failed: the retriever did not answer within 0.3 s.")
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_an_overloaded_server_is_asked_a_second_time(server: Server, status: int) -> None:
    def recovering(handler: Handler, body: dict[str, Any]) -> None:
        is_first = len(server.requests) == 1
        handler.answer(b"{}", status) if is_first else saying(documents("Here."))(handler, body)

    server.behaviour = recovering
    assert news(world_of(server).step("search[Kyoto]")) == "[1] Here."
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("behaviour", "attempts"),
    [
        (saying(b"", 503), 2),
        (lambda handler, body: handler.connection.close(), 2),
        (saying(b"", 400), 1),
        (saying(b"no"), 1),
    ],
)
def test_what_is_tried_again_and_what_is_not(
    server: Server, behaviour: Behaviour, attempts: int
) -> None:
    server.behaviour = behaviour
    world_of(server).step("search[Kyoto]")
    assert len(server.requests) == attempts


def test_the_expert_asks_again_after_a_failure(server: Server) -> None:
    server.behaviour = saying(b"no")
    world = world_of(server)
    plan = world.solve()
    assert plan is not None
    world.step(plan[0])
    assert world.solve() == plan
    server.behaviour = saying(documents("Something else."))
    world.step(plan[0])
    assert world.solve() == plan[1:]


def test_no_server_at_all() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{held.getsockname()[1]}/retrieve"
        world = registry.make("search_qa", retriever="http", url=url)
        world.reset(0, 0)
        result = world.step("search[Kyoto]")
    assert "cannot be reached" in result.observation.text
    assert "Connection refused" in result.observation.text


def test_text_of_a_server_is_cleaned_and_cut(server: Server) -> None:
    content = b'{"result": [[{"document": {"title": "a\\ud800\\u0000b", "text": "x\\n\\u001b[2Jy '
    server.behaviour = saying(content + b"z" * 100_000 + b'"}}]]}')
    result = world_of(server, max_chars=20).step("search[Kyoto]")
    assert news(result) == "[1] a? b: x [2Jy zzzzzzzzzzzzz ..."
    result.observation.text.encode("utf-8")
    assert len(result.observation.frame or "") < 500


def test_odd_queries_reach_the_server_as_they_are(server: Server) -> None:
    world = world_of(server)
    for query in ('"} {', "\u202e\x01 \U0001f600", "\ud800"):
        world.step(f"search[{query}]")
        assert server.requests[-1]["queries"] == [query]


@pytest.mark.long
@pytest.mark.parametrize("env_id", ["search_qa", "search_tools"])
def test_the_contract_holds_even_without_a_server(server: Server, env_id: str) -> None:
    server.behaviour = saying(b"no")
    params = {"retriever": "http", "url": server.url}
    report = check_env(env_id, params)
    assert report.failed == {}
    assert report.skipped["expert"].startswith(f"{server.url}: The search failed: the retriever ")


def test_the_address_has_a_path_and_a_query(server: Server) -> None:
    paths: list[str] = []

    def note(handler: Handler, body: dict[str, Any]) -> None:
        paths.append(handler.path)
        handler.answer(b'{"results": []}')

    server.behaviour = note
    HttpRetriever(f"{server.url}?b=c", protocol="ragen", timeout_s=5).search("x", 1)
    assert paths == ["/retrieve?b=c"]
