"""One server, seen from those who play there: JSON requests with a deadline, and waiting for it."""

from __future__ import annotations

import http.client
import io
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import urlsplit

from ...base import EnvParamsError, EnvUnavailableError, shorten
from .protocol import MAX_BODY_BYTES, ProtocolError, decoded, encoded

CONNECT_S = 5.0
"""Seconds that opening a connection may take, unless the request has less."""
RETRIES = 2
"""Further attempts after a connection failed; every request may be repeated."""
_PAUSE_S = 0.1
"""Before the second attempt; each further one waits twice as long."""
_POLL_S = 0.25
"""Between two looks whether a server is back."""
_MAX_IDLE = 64
"""Connections that are kept."""
_CHUNK = 1 << 16


class RemoteError(EnvUnavailableError):
    """A remote environment failed; one sentence says how."""


class SessionGoneError(RemoteError):
    """The server has no such session (any more)."""


class UnreachableError(RemoteError):
    """Nobody answers at the address."""


class Link:
    """Requests to one server, from any number of threads.

    Args:
        url: `http://host:port`, or with https and a path before the server's own.
        token: goes along as a bearer token, if there is one.
    """

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        self.url = url.rstrip("/")
        self._is_encrypted = parts.scheme == "https"
        self._host, self._port, self._prefix = parts.hostname, parts.port, parts.path.rstrip("/")
        self._headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._was_seen = False
        self._down_since: float | None = None

    def post(self, path: str, content: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """The server's answer to an object.

        Args:
            timeout_s: of one attempt, from the connection to the last byte.

        Raises:
            UnreachableError: no attempt got an answer.
            SessionGoneError: the session is not there.
            RemoteError: an answer that is late, an error, too long, or no answer of the protocol.
        """
        return self._asked("POST", path, encoded(content), timeout_s)

    def leave(self, path: str, timeout_s: float) -> None:
        """Ask once for a session to be removed, unless the server is known to be away.

        Of many sessions at a server that hangs, only the first one waits for it.
        """
        if self._down_since is not None:
            return
        try:
            self._tried("DELETE", path, None, timeout_s)
        except RemoteError:
            with self._lock:
                self._down_since = time.monotonic()

    def wait_for(self, ask: Callable[[], dict[str, Any]], wait_s: float) -> dict[str, Any]:
        """What `ask` returns, after waiting for a server that was there before and has gone.

        All who wait for one server give up together, `wait_s` after it was first missed.

        Raises:
            UnreachableError: it did not come back, or was never there.
        """
        while True:
            try:
                return ask()
            except UnreachableError as error:
                missed = time.monotonic() - (self._down_since or time.monotonic())
                if not self._was_seen:
                    raise UnreachableError(
                        f"{error}; start the server on that machine with `echoscope envs serve "
                        "ENV`, and check url (docs/remote.md)"
                    ) from None
                if missed >= wait_s:
                    raise UnreachableError(
                        f"{error}; it has been away for {missed:.0f} s (wait_s is {wait_s:g})"
                    ) from None
            time.sleep(_POLL_S)

    def _asked(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> dict[str, Any]:
        for attempt in range(RETRIES + 1):
            try:
                answer = self._tried(method, path, body, timeout_s)
            except UnreachableError:
                if attempt == RETRIES or self._down_since is not None:
                    with self._lock:
                        self._down_since = self._down_since or time.monotonic()
                    raise
                time.sleep(_PAUSE_S * 2**attempt)
            else:
                self._was_seen, self._down_since = True, None
                return answer
        raise AssertionError("unreachable")

    def _tried(
        self, method: str, path: str, body: bytes | None, timeout_s: float
    ) -> dict[str, Any]:
        connection = self._connection(timeout_s)
        try:
            connection.request(method, self._prefix + path, body, self._headers)
            response = connection.getresponse()
            held = bytearray()
            while chunk := response.read1(_CHUNK):
                held += chunk
                if len(held) > MAX_BODY_BYTES:
                    raise RemoteError(f"{self.url} answered more than {MAX_BODY_BYTES >> 20} MiB")
            response.read()  # nothing is left, but only this frees the connection for the next
        except TimeoutError:
            connection.close()
            raise RemoteError(
                f"{self.url} did not answer within {timeout_s:g} s: raise timeout_s if the world "
                "takes longer, or look at the server"
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            connection.close()
            reason = shorten(" ".join(str(error).split()) or type(error).__name__, 120)
            raise UnreachableError(f"cannot reach {self.url}: {reason}") from None
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return self._checked(response.status, bytes(held))

    def _checked(self, status: int, data: bytes) -> dict[str, Any]:
        """The content of an answer that is no error."""
        if 300 <= status < 400:
            raise RemoteError(
                f"{self.url} answered {status}, which redirects, and that is not followed: set url "
                "to the server's own address"
            )
        if status in (502, 504) and b'"error"' not in data[:20]:
            raise UnreachableError(f"cannot reach {self.url}: something before it said {status}")
        try:
            content = decoded(data)
        except ProtocolError as error:
            raise RemoteError(
                f"{self.url} answered {status} with something else than this protocol ({error}): "
                "url must be that of `echoscope envs serve`"
            ) from None
        if status == 200:
            return content
        told = content.get("error")
        kind, message = (
            (str(told.get("kind")), shorten(str(told.get("message")), 300))
            if isinstance(told, dict)
            else ("", "no reason given")
        )
        if kind == "unknown_session":
            raise SessionGoneError(
                f"the session at {self.url} is gone: the server was started again, or the session "
                f"expired ({message})"
            )
        raise RemoteError(f"{self.url} answered {status}: {message}")

    def _connection(self, timeout_s: float) -> http.client.HTTPConnection:
        deadline = time.monotonic() + timeout_s
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        if connection is None:
            kind = http.client.HTTPSConnection if self._is_encrypted else http.client.HTTPConnection
            connection = kind(self._host, self._port, timeout=min(timeout_s, CONNECT_S))
            try:
                connection.connect()
            except (OSError, ValueError) as error:
                connection.close()
                reason = shorten(str(error) or type(error).__name__, 120)
                raise UnreachableError(f"cannot reach {self.url}: {reason}") from None
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sock = cast(socket.socket, _PatientSocket(connection.sock))
        cast(_PatientSocket, connection.sock).deadline = deadline
        return connection

    def _keep(self, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if connection.sock is not None and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


class _PatientSocket:
    """A connected socket whose every call ends by one deadline, however slowly bytes come."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._num_files = 0
        self._is_closed = False
        self.deadline = 0.0

    def sendall(self, data: Any) -> None:
        self._inner.settimeout(self._left())
        self._inner.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        """The bytes that come; `mode` is always "rb"."""
        self._num_files += 1
        return io.BufferedReader(_Incoming(self))

    def receive_into(self, buffer: Any) -> int:
        self._inner.settimeout(self._left())
        return self._inner.recv_into(buffer)

    def close(self) -> None:
        """Close the connection, once nobody reads from it any more."""
        self._is_closed = True
        if not self._num_files:
            self._inner.close()

    def file_closed(self) -> None:
        """One who read from it has ended."""
        self._num_files -= 1
        if self._is_closed:
            self.close()

    def _left(self) -> float:
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


class _Incoming(io.RawIOBase):
    def __init__(self, source: _PatientSocket) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._source.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            self._source.file_closed()
        super().close()


def checked_url(url: str) -> str:
    """`url` if it names a server.

    Raises:
        EnvParamsError: it does not.
    """
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.query
        is_right = is_right and (parts.port is None or parts.port > 0) and not parts.username
    except ValueError:
        is_right = False
    if not is_right or not url.isascii() or not url.isprintable() or " " in url:
        raise EnvParamsError(
            f"url is {shorten(url, 100)!r}, but must look like http://127.0.0.1:8700"
        )
    if parts.path.rstrip("/").endswith("/v1"):
        raise EnvParamsError(
            f"url is {shorten(url, 100)!r}, but must be the address of the server: give the url "
            "without /v1"
        )
    return url


_links: dict[tuple[int, str, str], Link] = {}
_links_lock = threading.Lock()


def link_to(url: str, token: str) -> Link:
    """The link of this process to a server: all worlds that play there share it."""
    with _links_lock:
        return _links.setdefault((os.getpid(), url.rstrip("/"), token), Link(url, token))
