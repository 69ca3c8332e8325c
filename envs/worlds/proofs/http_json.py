"""One question to a server in JSON, bounded in time and size whatever the server does."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from ...base import EnvParamsError, shorten

MAX_ANSWER_BYTES = 8 << 20


class HttpJsonError(Exception):
    """Why there is no answer: a clause whose subject is the server."""

    def __init__(self, clause: str, *, is_worth_a_retry: bool = False) -> None:
        super().__init__(clause)
        self.is_worth_a_retry = is_worth_a_retry


def checked_url(url: str) -> str:
    """`url` without a slash at its end, if it is one of HTTP.

    Raises:
        EnvParamsError: it is not.
    """
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_url = False
    if not is_url or parts.query or parts.fragment or parts.username is not None:
        raise EnvParamsError(
            f"server is {shorten(url, 100)!r}, but must look like http://127.0.0.1:8000"
        )
    return url.rstrip("/")


def post_json(
    url: str, content: Mapping[str, Any], headers: Mapping[str, str], timeout_s: float
) -> Any:
    """What a server answers, parsed.

    Args:
        timeout_s: from the connection to the last byte.

    Raises:
        HttpJsonError: no answer in time, another status than 200, or no JSON.
    """
    parts = urlsplit(url)
    assert parts.hostname is not None
    deadline = time.monotonic() + timeout_s
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname, parts.port, timeout=timeout_s)
    watch: threading.Timer | None = None
    try:
        connection.connect()
        # A server that sends a byte now and then would never reach the socket's own limit.
        left_s = max(0.0, deadline - time.monotonic())
        watch = threading.Timer(left_s, _cut, args=(connection.sock,))
        watch.daemon = True
        watch.start()
        body = json.dumps(content).encode("ascii")
        sent = {"Content-Type": "application/json", "Connection": "close", **headers}
        connection.request("POST", parts.path, body, sent)
        response = connection.getresponse()
        data = response.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            raise HttpJsonError(f"did not answer within {timeout_s:g} s") from None
        reason = shorten(str(error) or type(error).__name__, 80)
        raise HttpJsonError(f"cannot be reached ({reason})", is_worth_a_retry=True) from None
    finally:
        if watch is not None:
            watch.cancel()
        connection.close()
    if time.monotonic() >= deadline:
        raise HttpJsonError(f"did not answer within {timeout_s:g} s")
    if response.status != 200:
        raise HttpJsonError(
            f"answered with status {response.status}",
            is_worth_a_retry=response.status in (429, 500, 502, 503, 504),
        )
    if len(data) > MAX_ANSWER_BYTES:
        raise HttpJsonError(f"answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        raise HttpJsonError("answered with text that is not JSON") from None


def _cut(sock: socket.socket) -> None:
    """End what another thread waits for on a socket."""
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it had ended by itself
