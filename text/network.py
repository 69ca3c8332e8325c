"""Addresses of machines, and requests to servers, bounded in time and size whatever they do."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import ipaddress
import json
import os
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import urlsplit

from .strict_json import parsed_json

T = TypeVar("T")
STATUSES_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Of a server that is overloaded, late or starting. Every other error would come again."""
CONNECT_S = 5.0
"""Seconds that opening a connection may take, unless the request has less."""
MAX_IDLE_CONNECTIONS = 64
NO_HEADERS: Mapping[str, str] = MappingProxyType({})
_MAX_REASON_CHARS = 120


class HttpError(Exception):
    """Why there is no answer: a clause whose subject is the server."""

    def __init__(self, clause: str, *, is_worth_a_retry: bool = False) -> None:
        super().__init__(clause)
        self.is_worth_a_retry = is_worth_a_retry


class NoConnectionError(HttpError):
    """Nobody answers at the address, or the connection broke. The clause is the bare reason."""


class LateAnswerError(HttpError):
    """The last byte of the answer had not come in time."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Status and body of an answer, whatever they are."""

    status: int
    body: bytes


class HttpClient:
    """Requests to one server, from any number of threads. Connections are kept and shared.

    Redirects are not followed, no cookie is kept, and no proxy of the environment is used.

    Args:
        url: of the server, or of the endpoint; see `is_http_url`.
        max_bytes: of the body of an answer.
        token: goes along as a bearer token, if there is one.
    """

    def __init__(self, url: str, *, max_bytes: int, token: str = "") -> None:
        import httpx  # here: those who only ask about addresses need not load it

        self.url = url
        self._max_bytes = max_bytes
        self._loop = _event_loop(os.getpid())
        self._running: set[concurrent.futures.Future[Answer]] = set()
        self._lock = threading.Lock()
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.AsyncClient(
            headers=headers,
            # The certificates of this machine; without TLS there is nothing to verify.
            verify=ssl.create_default_context() if url.startswith("https:") else False,
            timeout=httpx.Timeout(None, connect=CONNECT_S),
            limits=httpx.Limits(
                max_connections=None, max_keepalive_connections=MAX_IDLE_CONNECTIONS
            ),
            cookies=CookieJar(policy=DefaultCookiePolicy(allowed_domains=[])),
            trust_env=False,
        )

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> Answer:
        """The server's answer, of any status.

        Args:
            path: what follows the url of the server.
            timeout_s: from the connection to the last byte.

        Raises:
            NoConnectionError, LateAnswerError, HttpError: no answer, none in time, or one too long.
        """
        future = asyncio.run_coroutine_threadsafe(
            self._answer(method, path, body, timeout_s, headers), self._loop
        )
        with self._lock:
            self._running.add(future)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise NoConnectionError("the request was cut off") from None
        except BaseException:
            future.cancel()  # nobody waits for it any more
            raise
        finally:
            with self._lock:
                self._running.discard(future)

    def post_json(
        self,
        path: str,
        content: Any,
        *,
        timeout_s: float,
        headers: Mapping[str, str] = NO_HEADERS,
        retries: int = 1,
    ) -> Any:
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
                answer = self.ask("POST", path, body, timeout_s=left_s, headers=headers)
            except LateAnswerError:
                raise LateAnswerError(f"did not answer within {timeout_s:g} s") from None
            except NoConnectionError as error:
                raise HttpError(f"cannot be reached ({error})", is_worth_a_retry=True) from None
            if answer.status != 200:
                is_busy = answer.status in STATUSES_WORTH_A_RETRY
                raise HttpError(f"answered with status {answer.status}", is_worth_a_retry=is_busy)
            try:
                return parsed_json(answer.body)
            except ValueError:
                raise HttpError("answered with text that is not JSON") from None

        return retried(attempt, retries=retries, may_go_on=lambda: time.monotonic() < deadline)

    def cancel(self) -> None:
        """Cut off what is under way in other threads: their calls fail at once."""
        with self._lock:
            for future in self._running:
                future.cancel()

    async def _answer(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        headers: Mapping[str, str],
    ) -> Answer:
        import httpx

        held = bytearray()
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._client.stream(
                    method, self.url + path, content=body, headers=dict(headers)
                ) as response,
            ):
                async for chunk in response.aiter_raw():
                    held += chunk
                    if len(held) > self._max_bytes:
                        raise HttpError(f"answered with more than {self._max_bytes >> 20} MiB")
        except TimeoutError:
            raise LateAnswerError(f"did not answer within {timeout_s:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise NoConnectionError(_reason(error), is_worth_a_retry=True) from None
        return Answer(response.status_code, bytes(held))


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
    for number in range(retries):
        try:
            return attempt()
        except HttpError as error:
            if not error.is_worth_a_retry or not may_go_on():
                raise
        time.sleep(pause_s * 2**number)
    return attempt()


def is_http_url(url: str) -> bool:
    """Whether a text is the address of a server, or of an endpoint of one."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_loopback(address: str) -> bool:
    """Whether an address reaches this machine only.

    >>> is_loopback("localhost"), is_loopback("127.0.0.2"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return address == "localhost" or ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@functools.cache
def _event_loop(process: int) -> asyncio.AbstractEventLoop:
    """Where the requests of this process run: in one thread beside those that wait for them."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="echoscope-http", daemon=True).start()
    return loop


def _reason(error: BaseException) -> str:
    """What the innermost error says, in printable ASCII: those around it say less."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif (inner := error.__cause__ or error.__context__) is not None:
            error = inner
        else:
            break
    number = error.errno if isinstance(error, OSError) else None
    text = os.strerror(number) if number is not None and number > 0 else str(error)
    line = " ".join(text.split()) or type(error).__name__
    visible = line.encode("ascii", "backslashreplace").decode("ascii")
    return "".join(char if char.isprintable() else "?" for char in visible)[:_MAX_REASON_CHARS]
