"""A server whose answer comes a byte at a time: the limit counts for the whole answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from echoscope.core.engines.base import EngineError
from echoscope.core.engines.server.http import HttpServer


@contextmanager
def dripping(begin: bytes) -> Iterator[str]:
    """A server that answers `begin` and then a byte every 20 ms, until the block ends."""
    is_over = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, contextlib.suppress(OSError):
            connection.recv(65536)
            connection.sendall(begin)
            while not is_over.wait(0.02):
                connection.sendall(b"1")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            is_over.set()
            thread.join()


@pytest.mark.parametrize(
    "begin",
    [
        pytest.param(b"", id="status line"),
        pytest.param(b"HTTP/1.1 200 OK\r\nX: ", id="header"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", id="body"),
        pytest.param(b"HTTP/1.0 200 OK\r\n\r\n", id="body without a length"),
    ],
)
def test_an_answer_that_drips_is_left_after_the_timeout(begin: bytes) -> None:
    with dripping(begin) as url:
        server = HttpServer(url, timeout_s=0.3, retries=0)
        with pytest.raises(EngineError, match=r"did not answer within 0.3 s"):
            server.post("/v1/completions", {})
