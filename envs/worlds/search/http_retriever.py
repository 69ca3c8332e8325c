"""A client of retrieval servers over HTTP, in the shapes of Search-R1 and RAGEN.

    search_r1  {"queries": ["..."], "topk": 3, "return_scores": true}
               -> {"result": [[{"document": {"id": ..., "contents": ...}, "score": ...}, ...]]}
    ragen      {"query": "...", "top_k": 3}  ->  {"results": [{"id": ..., "content": ...}, ...]}

Nothing that a server sends is trusted: time and size of an answer are bounded, its JSON is checked,
its text is cleaned.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from typing import Any, Literal, NoReturn
from urllib.parse import urlsplit

from ...base import EnvParamsError, shorten
from .passages import Passage, passage_of

Protocol = Literal["search_r1", "ragen"]
MAX_ANSWER_BYTES = 4 << 20
MAX_TEXT_CHARS = 20_000
"""Of one passage."""
_PAUSE_S = 0.1
_WORTH_A_RETRY = frozenset({429, 500, 502, 503, 504})


class RetrieverError(Exception):
    """Why a search got no answer, in words that complete "The search failed: the retriever ..."."""

    def __init__(self, text: str, *, is_worth_a_retry: bool = False) -> None:
        super().__init__(text)
        self.is_worth_a_retry = is_worth_a_retry


class HttpRetriever:
    """A server that is asked for passages, each time over a connection of its own.

    Searching changes nothing on a server, so a refused or broken connection and an overloaded
    server are tried a second time, within the same `timeout_s`.

    Args:
        url: of the endpoint, such as `http://127.0.0.1:8000/retrieve`.
        protocol: the shape of the question and its answer.
        timeout_s: how long a search may take, both attempts together.

    Raises:
        EnvParamsError: the address is none.
    """

    def __init__(self, url: str, *, protocol: Protocol, timeout_s: float) -> None:
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            parts, port = urlsplit(""), None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EnvParamsError(
                f"url is {shorten(url, 100)!r}, but must look like http://127.0.0.1:8000/retrieve"
            )
        self._host, self._port, self._is_secure = parts.hostname, port, parts.scheme == "https"
        self._path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        self._protocol = protocol
        self._timeout_s = timeout_s

    def search(self, query: str, most: int) -> tuple[Passage, ...]:
        """The passages that the server names, at most `most`.

        Raises:
            RetrieverError: no answer in time, an error, or no answer of the agreed shape.
        """
        deadline = time.monotonic() + self._timeout_s
        if self._protocol == "search_r1":
            body: dict[str, Any] = {"queries": [query], "topk": most, "return_scores": True}
        else:
            body = {"query": query, "top_k": most}
        try:
            answer = self._asked(body, deadline)
        except RetrieverError as error:
            if not error.is_worth_a_retry or time.monotonic() + _PAUSE_S >= deadline:
                raise
            time.sleep(_PAUSE_S)
            answer = self._asked(body, deadline)
        return _passages(answer, self._protocol, most)

    def _asked(self, body: dict[str, Any], deadline: float) -> Any:
        """The server's answer to one request, parsed."""
        kind = http.client.HTTPSConnection if self._is_secure else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=max(0.01, deadline - time.monotonic()))
        # A server that sends a byte now and then would never reach the socket's own limit.
        held: list[socket.socket] = []
        watch = threading.Timer(
            max(0.0, deadline - time.monotonic()), lambda: _cut([*held, connection.sock][0])
        )
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            held.append(connection.sock)  # the connection forgets it where the server says "close"
            payload = json.dumps(body).encode("ascii")
            connection.request("POST", self._path, payload, {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read(MAX_ANSWER_BYTES + 1)
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, TimeoutError) or time.monotonic() >= deadline:
                raise RetrieverError(f"did not answer within {self._timeout_s:g} s") from None
            reason = shorten(str(error) or type(error).__name__, 80)
            raise RetrieverError(f"cannot be reached ({reason})", is_worth_a_retry=True) from None
        finally:
            watch.cancel()
            connection.close()
        if time.monotonic() >= deadline:
            raise RetrieverError(f"did not answer within {self._timeout_s:g} s")
        if response.status != 200:
            raise RetrieverError(
                f"answered with status {response.status}",
                is_worth_a_retry=response.status in _WORTH_A_RETRY,
            )
        if len(content) > MAX_ANSWER_BYTES:
            raise RetrieverError(f"answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
        try:
            return json.loads(content, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            raise RetrieverError("answered with text that is not JSON") from None


def _cut(sock: socket.socket | None) -> None:
    """End what another thread waits for on a socket."""
    if sock is not None:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had ended by itself


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _passages(answer: Any, protocol: Protocol, most: int) -> tuple[Passage, ...]:
    """The passages of an answer, whichever of the two shapes it has."""
    name = "result" if protocol == "search_r1" else "results"
    listed = answer.get(name) if isinstance(answer, dict) else None
    if protocol == "search_r1" and isinstance(listed, list) and len(listed) == 1:
        listed = listed[0]
    elif protocol == "search_r1":
        listed = None
    if not isinstance(listed, list):
        raise RetrieverError(f"answered with JSON that has no list {name!r} for the query")
    passages = []
    for number, entry in enumerate(listed[:most], start=1):
        document = entry.get("document", entry) if isinstance(entry, dict) else entry
        row = {"contents": document} if isinstance(document, str) else document
        passage = passage_of(row, str(number), MAX_TEXT_CHARS) if isinstance(row, dict) else None
        if passage is None:
            raise RetrieverError(f"answered with JSON whose entry {number} has no text")
        passages.append(passage)
    return tuple(passages)
