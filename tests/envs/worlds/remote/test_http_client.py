"""Requests that nothing a server does can prolong or enlarge, and the attempts they are worth."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from costs import HANG_S, without_hanging

from echoscope.envs.worlds.remote.http_client import (
    HttpClient,
    HttpError,
    LateAnswerError,
    NoConnectionError,
    retried,
)

Talk = Callable[[socket.socket], None]


@contextmanager
def answering(talk: Talk) -> Iterator[tuple[str, list[bytes]]]:
    """The url of a server that answers each request as told, and the requests that it had."""
    requests: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return  # the test is over
            with connection:
                requests.append(connection.recv(1 << 16))
                talk(connection)

    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(5)


def saying(head: bytes) -> Talk:
    return lambda connection: connection.sendall(b"HTTP/1.1 " + head + b"\r\n\r\n")


def test_a_redirect_is_an_answer_and_is_not_followed() -> None:
    head = b"302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0"
    with answering(saying(head)) as (url, _):
        assert HttpClient(url, max_bytes=100).ask("GET", "/", timeout_s=5).status == 302


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 2", id="status line"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", id="body"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", id="body without a length"),
    ],
)
def test_an_answer_that_comes_a_byte_at_a_time_is_left_after_the_timeout(begin: bytes) -> None:
    is_over = threading.Event()

    def drip(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection.sendall(begin)
            while begin and not is_over.wait(0.02):
                connection.sendall(b"1")
            is_over.wait(HANG_S)

    with answering(drip) as (url, _):
        late = pytest.raises(LateAnswerError, match=r"^did not answer within 0.3 s$")
        with without_hanging(), late:
            HttpClient(url, max_bytes=1 << 20).ask("GET", "/", timeout_s=0.3)
        is_over.set()


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"200 OK\r\nContent-Length: 1000\r\n\r\n" + b" " * 1000, "answered with more than 0 MiB"),
        (b"200 OK\r\n" + b"x: y\r\n" * 30_000, "too long"),
        (b"200 OK\r\nContent-Length: 1000\r\n\r\nshort", "peer closed connection"),
    ],
)
def test_an_answer_that_is_too_long_or_too_short_is_none(head: bytes, reason: str) -> None:
    with answering(saying(head)) as (url, _), pytest.raises(HttpError, match=reason):
        HttpClient(url, max_bytes=100).ask("GET", "/", timeout_s=5)


def test_cookies_do_not_come_back_and_the_token_goes_along() -> None:
    head = b"200 OK\r\nSet-Cookie: a=b\r\nConnection: close\r\nContent-Length: 0"
    with answering(saying(head)) as (url, requests):
        client = HttpClient(url, max_bytes=100, token="secret")
        for _ in range(2):
            client.ask("GET", "/", timeout_s=5)
    assert not any(b"cookie" in request.lower() for request in requests)
    assert all(b"Authorization: Bearer secret\r\n" in request for request in requests)


def test_a_call_that_is_cut_off_ends_at_once() -> None:
    is_over = threading.Event()
    with answering(lambda connection: is_over.wait(HANG_S) and None) as (url, _):
        client = HttpClient(url, max_bytes=100)
        threading.Timer(0.1, client.cancel).start()
        with without_hanging(), pytest.raises(NoConnectionError, match="disconnected"):
            client.ask("GET", "/", timeout_s=HANG_S)
        is_over.set()


@pytest.mark.parametrize(
    ("failures", "is_worth", "num_attempts", "is_answered"),
    [(0, True, 1, True), (2, True, 3, True), (3, True, 3, False), (1, False, 1, False)],
)
def test_attempts_are_bounded_and_made_only_where_they_may_help(
    failures: int, is_worth: bool, num_attempts: int, is_answered: bool
) -> None:
    attempts: list[int] = []

    def attempt() -> str:
        attempts.append(1)
        if len(attempts) <= failures:
            raise HttpError("failed", is_worth_a_retry=is_worth)
        return "answer"

    if is_answered:
        assert retried(attempt, retries=2, pause_s=0.0) == "answer"
    else:
        with pytest.raises(HttpError, match="failed"):
            retried(attempt, retries=2, pause_s=0.0)
    assert len(attempts) == num_attempts
