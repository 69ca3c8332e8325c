"""One question to a server in JSON, bounded in time and size whatever the server does."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NoReturn
from urllib.parse import urlsplit

from ...base import shorten

MAX_ANSWER_BYTES = 8 << 20
EMPTY_HEADERS: Mapping[str, str] = MappingProxyType({})
_PAUSE_S = 0.1
_WORTH_A_RETRY = frozenset({429, 500, 502, 503, 504})


class HttpJsonError(Exception):
    """Why there is no answer: a clause whose subject is the server."""

    def __init__(self, clause: str, *, is_worth_a_retry: bool = False) -> None:
        super().__init__(clause)
        self.is_worth_a_retry = is_worth_a_retry


def post_json(
    url: str,
    content: Mapping[str, Any],
    timeout_s: float,
    headers: Mapping[str, str] = EMPTY_HEADERS,
    max_bytes: int = MAX_ANSWER_BYTES,
) -> Any:
    """What a server answers to a question that may be asked twice, parsed.

    A refused or broken connection and an overloaded server are tried a second time, within the same
    `timeout_s`. Each attempt has a connection of its own.

    Args:
        url: of the endpoint, as `is_http_url` has it.
        timeout_s: from the first connection to the last byte.
        max_bytes: of an answer.

    Raises:
        HttpJsonError: no answer in time, another status than 200, or no JSON.
    """
    deadline = time.monotonic() + timeout_s
    limits = (deadline, timeout_s, max_bytes)
    try:
        return _asked(url, content, headers, *limits)
    except HttpJsonError as error:
        if not error.is_worth_a_retry or time.monotonic() + _PAUSE_S >= deadline:
            raise
    time.sleep(_PAUSE_S)
    return _asked(url, content, headers, *limits)


def is_http_url(url: str) -> bool:
    """Whether a text is the address of a server, or of an endpoint of one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _asked(
    url: str,
    content: Mapping[str, Any],
    headers: Mapping[str, str],
    deadline: float,
    timeout_s: float,
    max_bytes: int,
) -> Any:
    parts = urlsplit(url)
    assert parts.hostname is not None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    left_s = max(0.01, deadline - time.monotonic())
    connection = kind(parts.hostname, parts.port, timeout=left_s)
    # A server that sends a byte now and then would never reach the socket's own limit.
    held: list[socket.socket] = []
    watch = threading.Timer(left_s, lambda: _cut([*held, connection.sock][0]))
    watch.daemon = True
    watch.start()
    try:
        connection.connect()
        held.append(connection.sock)  # the connection forgets it where the server says "close"
        body = json.dumps(content).encode("ascii")
        connection.request("POST", path, body, {"Content-Type": "application/json", **headers})
        response = connection.getresponse()
        data = response.read(max_bytes + 1)
    except (OSError, http.client.HTTPException, ValueError) as error:
        if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
            raise HttpJsonError(f"did not answer within {timeout_s:g} s") from None
        reason = shorten(str(error) or type(error).__name__, 80)
        raise HttpJsonError(f"cannot be reached ({reason})", is_worth_a_retry=True) from None
    finally:
        watch.cancel()
        connection.close()
    if time.monotonic() >= deadline:
        raise HttpJsonError(f"did not answer within {timeout_s:g} s")
    if response.status != 200:
        raise HttpJsonError(
            f"answered with status {response.status}",
            is_worth_a_retry=response.status in _WORTH_A_RETRY,
        )
    if len(data) > max_bytes:
        raise HttpJsonError(f"answered with more than {max_bytes >> 20} MiB")
    try:
        return json.loads(data, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise HttpJsonError("answered with text that is not JSON") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _cut(sock: socket.socket | None) -> None:
    """End what another thread waits for on a socket."""
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had ended by itself
