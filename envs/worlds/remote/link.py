"""One server, seen from those who play there: requests of the protocol, and waiting for it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import urlsplit

from echoscope.text.network import is_http_url

from ...base import EnvParamsError, EnvUnavailableError, shorten
from .http_client import (
    Answer,
    HttpClient,
    HttpError,
    LateAnswerError,
    NoConnectionError,
    retried,
)
from .protocol import MAX_BODY_BYTES, ProtocolError, decoded, encoded

T = TypeVar("T")
RETRIES = 2
"""Further attempts after a connection failed; every request may be repeated."""
_POLL_S = 0.25
"""Between two looks whether a server is back."""


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
        self.url = url
        self._client = HttpClient(url, max_bytes=MAX_BODY_BYTES, token=token)
        self._lock = threading.Lock()
        self._was_seen = False
        self._down_since: float | None = None

    def post(self, path: str, content: Mapping[str, Any], timeout_s: float) -> bytes:
        """The body of the server's answer to an object.

        Args:
            timeout_s: of one attempt, from the connection to the last byte.

        Raises:
            UnreachableError: no attempt got an answer.
            SessionGoneError: the session is not there.
            RemoteError: an answer that is late, an error or too long.
        """
        try:
            answer = retried(
                lambda: self._tried("POST", path, encoded(content), timeout_s),
                retries=RETRIES,
                may_go_on=lambda: self._down_since is None,
            )
        except NoConnectionError as error:
            with self._lock:
                self._down_since = self._down_since or time.monotonic()
            raise UnreachableError(f"cannot reach {self.url}: {error}") from None
        except LateAnswerError as error:
            raise RemoteError(
                f"{self.url} {error}: raise timeout_s if the world takes longer, or look at the "
                "server"
            ) from None
        except HttpError as error:
            raise RemoteError(f"{self.url} {error}") from None
        self._expect_no_error(answer)
        self._was_seen, self._down_since = True, None
        return answer.body

    def leave(self, path: str, timeout_s: float) -> None:
        """Ask once for a session to be removed, unless the server is known to be away.

        Of many sessions at a server that hangs, only the first one waits for it.
        """
        if self._down_since is not None:
            return
        try:
            self._tried("DELETE", path, None, timeout_s)
        except HttpError:
            with self._lock:
                self._down_since = time.monotonic()

    def wait_for(self, ask: Callable[[], T], wait_s: float) -> T:
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

    def _tried(self, method: str, path: str, body: bytes | None, timeout_s: float) -> Answer:
        answer = self._client.ask(method, path, body, timeout_s=timeout_s)
        if answer.status in (502, 504) and b'"error"' not in answer.body[:20]:
            raise NoConnectionError(
                f"something before it said {answer.status}", is_worth_a_retry=True
            )
        return answer

    def _expect_no_error(self, answer: Answer) -> None:
        if answer.status == 200:
            return
        if 300 <= answer.status < 400:
            raise RemoteError(
                f"{self.url} answered {answer.status}, which redirects, and that is not followed: "
                "set url to the server's own address"
            )
        try:
            told = decoded(answer.body).get("error")
        except ProtocolError as error:
            raise RemoteError(
                f"{self.url} answered {answer.status} with something else than this protocol "
                f"({error}): url must be that of `echoscope envs serve`"
            ) from None
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
        raise RemoteError(f"{self.url} answered {answer.status}: {message}")


def checked_url(url: str) -> str:
    """`url` if it names a server.

    Raises:
        EnvParamsError: it does not.
    """
    is_right = is_http_url(url) and url.isascii() and url.isprintable() and " " not in url
    if not is_right or any(sign in url for sign in "?#@"):
        raise EnvParamsError(
            f"url is {shorten(url, 100)!r}, but must look like http://127.0.0.1:8700"
        )
    if urlsplit(url).path.rstrip("/").endswith("/v1"):
        raise EnvParamsError(
            f"url is {shorten(url, 100)!r}, but must be the address of the server: give the url "
            "without /v1"
        )
    return url


_links: dict[tuple[int, str, str], Link] = {}
_links_lock = threading.Lock()


def link_to(url: str, token: str) -> Link:
    """The link of this process to a server: all worlds that play there share it."""
    key = (os.getpid(), url.rstrip("/"), token)
    with _links_lock:
        if key not in _links:
            _links[key] = Link(key[1], token)
        return _links[key]
