"""Requests to servers, bounded in time and size whatever a server does."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpcore

from echoscope.text.network import STATUSES_WORTH_A_RETRY, is_http_url
from echoscope.text.strict_json import parsed_json

from ...base import EnvParamsError, shorten

T = TypeVar("T")
CONNECT_S = 5.0
"""Seconds that opening a connection may take, unless the request has less."""
MAX_IDLE_CONNECTIONS = 64
KEEP_ALIVE_S = 60.0
_MAX_REASON_CHARS = 120


class HttpError(Exception):
    """Why there is no answer of use: a clause whose subject is the server.

    Args:
        status: that it answered with; 0 where it gave no answer.
    """

    def __init__(self, clause: str, *, is_worth_a_retry: bool = False, status: int = 0) -> None:
        super().__init__(clause)
        self.is_worth_a_retry = is_worth_a_retry or status in STATUSES_WORTH_A_RETRY
        self.status = status
        self.num_attempts = 1
        """How many attempts have failed by now: see `retried`."""


class NoConnectionError(HttpError):
    """Nobody answers at the address, or the connection broke. The clause is the bare reason."""


class LateAnswerError(HttpError):
    """The last byte of the answer had not come in time."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status and body of an answer, whatever they are."""

    status: int
    body: bytes


class HttpClient:
    """Requests to one server, from any number of threads. Connections are kept and shared.

    By httpcore, the transport of httpx, because httpx itself has a limit for each read only: a
    server that sends a header a byte at a time would never reach it. An event loop beside the
    threads would bound httpx, too, but costs a fifth of the steps of a world over HTTP. Redirects
    are not followed, no cookie is kept, no proxy of the environment is used, and nothing is
    unpacked.

    Args:
        url: of the server, or of the endpoint; see `is_http_url`.
        max_bytes: of the body of an answer.
        token: goes along as a bearer token, if there is one, in each of `token_headers`.
    """

    def __init__(
        self,
        url: str,
        *,
        max_bytes: int,
        token: str = "",
        token_headers: Sequence[str] = ("Authorization",),
    ) -> None:
        self.url = url
        self._max_bytes = max_bytes
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if token:
            self._headers |= dict.fromkeys(token_headers, f"Bearer {token}")
        self._network = _Network()
        self._pool = httpcore.ConnectionPool(
            # The certificates of this machine; without TLS there is nothing to verify.
            ssl_context=ssl.create_default_context() if url.startswith("https:") else None,
            max_connections=None,
            max_keepalive_connections=MAX_IDLE_CONNECTIONS,
            keepalive_expiry=KEEP_ALIVE_S,
            network_backend=self._network,
        )

    def ask(
        self, method: str, path: str, body: bytes | None = None, *, timeout_s: float
    ) -> HttpAnswer:
        """The server's answer, of any status.

        Args:
            path: what follows the url of the server.
            timeout_s: from the connection to the last byte.

        Raises:
            NoConnectionError, LateAnswerError, HttpError: no answer, none in time, or one too long.
        """
        deadline = time.monotonic() + timeout_s
        held = bytearray()
        try:
            with self._pool.stream(
                method,
                self.url + path,
                headers=[*self._headers.items()],
                content=b"" if body is None and method == "POST" else body,
                extensions={"timeout": dict.fromkeys(("connect", "read", "write"), deadline)},
            ) as response:
                for chunk in response.iter_stream():
                    held += chunk
                    if len(held) > self._max_bytes:
                        raise HttpError(f"answered with more than {self._max_bytes >> 20} MiB")
        except (
            httpcore.TimeoutException,
            httpcore.NetworkError,
            httpcore.ProtocolError,
            OSError,
            ValueError,
        ) as error:
            if time.monotonic() >= deadline:
                raise LateAnswerError(f"did not answer within {timeout_s:g} s") from None
            raise NoConnectionError(_reason(error), is_worth_a_retry=True) from None
        return HttpAnswer(response.status, bytes(held))

    def post_json(self, path: str, content: Any, *, timeout_s: float) -> Any:
        """What a server answers to a question that may be asked twice, parsed.

        Args:
            timeout_s: of all attempts together.

        Raises:
            HttpError: no answer in time, another status than 200, or no JSON.
        """
        deadline = time.monotonic() + timeout_s
        body = json.dumps(content).encode("ascii")

        def attempt() -> Any:
            left_s = max(0.01, deadline - time.monotonic())
            try:
                answer = self.ask("POST", path, body, timeout_s=left_s)
            except LateAnswerError:
                raise LateAnswerError(f"did not answer within {timeout_s:g} s") from None
            except NoConnectionError as error:
                raise HttpError(f"cannot be reached ({error})", is_worth_a_retry=True) from None
            if answer.status != 200:
                raise HttpError(f"answered with status {answer.status}", status=answer.status)
            try:
                return parsed_json(answer.body)
            except ValueError:
                raise HttpError("answered with text that is not JSON") from None

        return retried(attempt, retries=1, may_go_on=lambda: time.monotonic() < deadline)

    def cancel(self) -> None:
        """Cut off what is under way in other threads: their calls fail at once."""
        self._network.cut()


def checked_url(name: str, url: str, example: str) -> str:
    """The address of a server without a slash at its end; `name` is the parameter that holds it.

    Raises:
        EnvParamsError: it is none.
    """
    is_right = is_http_url(url) and url.isascii() and url.isprintable() and " " not in url
    if not is_right or any(sign in url for sign in "?#@"):
        raise EnvParamsError(f"{name} is {shorten(url, 100)!r}, but must look like {example}")
    return url.rstrip("/")


def retried(
    attempt: Callable[[], T],
    *,
    retries: int,
    pause_s: float = 0.1,
    may_go_on: Callable[[], bool] = lambda: True,
) -> T:
    """What an attempt returns, after at most `retries` further ones.

    Args:
        pause_s: before the second attempt; each further one waits twice as long.
        may_go_on: asked after a failed attempt.

    Raises:
        HttpError: of the last attempt, or of one that is not worth another.
    """
    num_attempts = 0
    while True:
        num_attempts += 1
        try:
            return attempt()
        except HttpError as error:
            error.num_attempts = num_attempts
            if num_attempts > retries or not error.is_worth_a_retry or not may_go_on():
                raise
        time.sleep(pause_s * 2 ** (num_attempts - 1))


class _Network(httpcore.NetworkBackend):
    """Connections whose timeouts are moments of `time.monotonic`: see `_Stream`."""

    def __init__(self) -> None:
        self._system = httpcore.SyncBackend()
        self._opened: set[_Stream] = set()

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        left_s = min(_left(timeout), CONNECT_S)
        return _Stream(self._system.connect_tcp(host, port, left_s), self._opened)

    def cut(self) -> None:
        """End what other threads wait for."""
        for stream in tuple(self._opened):
            with contextlib.suppress(OSError):  # it had ended by itself
                stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


class _Stream(httpcore.NetworkStream):
    """A connection whose calls all end by the moment of the request, however slowly bytes come."""

    def __init__(self, inner: httpcore.NetworkStream, opened: set[_Stream]) -> None:
        self._inner, self._opened = inner, opened
        opened.add(self)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._inner.read(max_bytes, _left(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._inner.write(buffer, _left(timeout))

    def close(self) -> None:
        self._opened.discard(self)
        self._inner.close()

    def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.NetworkStream:
        self._opened.discard(self)
        inner = self._inner.start_tls(ssl_context, server_hostname, _left(timeout))
        return _Stream(inner, self._opened)

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


def _left(moment: float | None) -> float:
    """Seconds until a moment.

    Raises:
        httpcore.ReadTimeout: it has passed.
    """
    left_s = (moment or 0.0) - time.monotonic()
    if left_s <= 0:
        raise httpcore.ReadTimeout
    return left_s


def _reason(error: BaseException) -> str:
    """What the innermost error says, in printable ASCII: those around it say less."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    number = error.errno if isinstance(error, OSError) else None
    text = os.strerror(number) if number is not None and number > 0 else str(error)
    line = " ".join(text.split()) or type(error).__name__
    visible = line.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(char if char.isprintable() else "?" for char in visible)[:_MAX_REASON_CHARS]
