"""Requests to one server: JSON there and back, each with a deadline, and a bound on attempts."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...config.loading import ConfigError
from ..base import EngineError

MAX_ANSWER_BYTES = 256 << 20
_CHUNK = 1 << 16
_PAUSE_S = 0.25
"""Before the second attempt; each further one waits twice as long."""
_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})


class HttpServer:
    """One server, for many threads: each keeps a connection of its own.

    Args:
        url: `http://host:port`, or with https and a path before the server's own.
        timeout_s: how long a whole answer may take, connection and all.
        retries: further attempts after a failed one.
        api_key: goes along as a bearer token, if there is one.
    """

    def __init__(
        self, url: str, *, timeout_s: float, retries: int, api_key: str | None = None
    ) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"engine.url is {url!r}, but must look like http://127.0.0.1:8000")
        self.url = url.rstrip("/")
        self.timeout_s = timeout_s
        self.retries = retries
        self._parts = parts
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._local = threading.local()
        self._lock = threading.Lock()
        self._connections: set[http.client.HTTPConnection] = set()
        self._abort_count = 0
        self.num_retries = 0
        """Attempts that were made again, since somebody set this to 0."""

    def post(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
        is_text: bool = False,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> Any:
        """The server's answer to a POST, parsed from JSON; None for an empty one.

        Args:
            is_text: the answer is no JSON, and is not read.
            is_gone: asked after a failed attempt; True ends the attempts.

        Raises:
            EngineError: no answer within the deadline, an error, or no JSON, in every attempt.
        """
        return self._asked("POST", path, body, timeout_s or self.timeout_s, is_gone, is_text)

    def get(self, path: str, *, timeout_s: float | None = None) -> Any:
        """The server's answer to a GET, as `post`."""
        return self._asked("GET", path, None, timeout_s or self.timeout_s, lambda: False, False)

    def abort(self) -> None:
        """Cut off what is under way in other threads: their calls fail at once."""
        with self._lock:
            self._abort_count += 1
            held = list(self._connections)
        for connection in held:
            _cut(connection)

    def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        is_gone: Callable[[], bool],
        is_text: bool,
    ) -> Any:
        aborts = self._abort_count
        for attempt in range(self.retries + 1):
            try:
                return self._tried(method, path, body, timeout_s, is_text)
            except _FailedError as error:
                is_last = attempt == self.retries or not error.is_worth_a_retry
                if is_last or is_gone() or self._abort_count != aborts:
                    tries = f" ({attempt + 1} attempts)" if attempt else ""
                    raise EngineError(f"{self.url}{path} {error}{tries}") from None
            with self._lock:
                self.num_retries += 1
            time.sleep(_PAUSE_S * 2**attempt)
        raise AssertionError("unreachable")

    def _tried(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        timeout_s: float,
        is_text: bool,
    ) -> Any:
        deadline = time.monotonic() + timeout_s
        connection = self._connection(timeout_s)
        # A socket's own limit begins anew with every byte that comes.
        timer = threading.Timer(timeout_s, _cut, [connection])
        timer.daemon = True
        timer.start()
        try:
            payload = None if body is None else json.dumps(body)
            connection.request(method, self._parts.path.rstrip("/") + path, payload, self._headers)
            if time.monotonic() >= deadline:
                raise TimeoutError  # it was not connected yet when it should have been cut
            response = connection.getresponse()
            held = bytearray()
            while chunk := response.read1(_CHUNK):
                held += chunk
                if time.monotonic() >= deadline:
                    raise TimeoutError
                if len(held) > MAX_ANSWER_BYTES:
                    raise _FailedError(f"answered more than {MAX_ANSWER_BYTES >> 20} MiB")
            response.read()  # nothing is left, but only this frees the connection for the next
            if time.monotonic() >= deadline:
                raise TimeoutError  # what was cut off may look like an end
        except (OSError, http.client.HTTPException) as error:
            self._drop(connection)
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise _FailedError(
                    f"did not answer within {timeout_s:g} s: raise engine.timeout_s if replies "
                    "take longer, or look at the server",
                    is_worth_a_retry=True,
                ) from None
            reason = " ".join(str(error).split()) or type(error).__name__
            raise _FailedError(f"cannot be reached: {reason}", is_worth_a_retry=True) from None
        except BaseException:
            self._drop(connection)
            raise
        finally:
            timer.cancel()
        text = held.decode("utf-8", errors="replace")
        if response.status != 200:
            raise _FailedError(
                f"answered {response.status}: {_said(text)}",
                is_worth_a_retry=response.status in _WORTH_A_RETRY,
            )
        if is_text or not text.strip():
            return None
        try:
            return json.loads(text)
        except ValueError:
            raise _FailedError(f"answered what is no JSON: {_said(text)}") from None

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            kind = (
                http.client.HTTPSConnection
                if self._parts.scheme == "https"
                else http.client.HTTPConnection
            )
            assert self._parts.hostname is not None
            connection = kind(self._parts.hostname, self._parts.port, timeout=timeout_s)
            self._local.connection = connection
            with self._lock:
                self._connections.add(connection)
        connection.timeout = timeout_s
        if connection.sock is not None:
            connection.sock.settimeout(timeout_s)
        return connection

    def _drop(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        with self._lock:
            self._connections.discard(connection)
        self._local.connection = None


def _cut(connection: http.client.HTTPConnection) -> None:
    """End what another thread waits for."""
    sock = connection.sock
    if sock is not None:
        with contextlib.suppress(OSError):  # it had ended by itself
            sock.shutdown(socket.SHUT_RDWR)


class _FailedError(Exception):
    """Why an attempt failed."""

    def __init__(self, text: str, *, is_worth_a_retry: bool = False) -> None:
        super().__init__(text)
        self.is_worth_a_retry = is_worth_a_retry


def _said(text: str, most: int = 200) -> str:
    """The server's words on one line, without control characters."""
    line = "".join(char if char.isprintable() else " " for char in text[: 4 * most])
    line = " ".join(line.split())
    return line if len(line) <= most else line[:most] + "..."
