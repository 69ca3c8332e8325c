"""A client of retrieval servers over HTTP, in the shapes of Search-R1 and RAGEN.

    search_r1  {"queries": ["..."], "topk": 3, "return_scores": true}
               -> {"result": [[{"document": {"id": ..., "contents": ...}, "score": ...}, ...]]}
    ragen      {"query": "...", "top_k": 3}  ->  {"results": [{"id": ..., "content": ...}, ...]}

Nothing that a server sends is trusted: time and size of an answer are bounded, its JSON is checked,
its text is cleaned.
"""

from __future__ import annotations

from typing import Any, Literal

from echoscope.text.network import is_http_url

from ...base import EnvParamsError, shorten
from ..remote.http_client import HttpClient, HttpError
from .passages import Passage, passage_of

Protocol = Literal["search_r1", "ragen"]
MAX_ANSWER_BYTES = 4 << 20
MAX_TEXT_CHARS = 20_000
"""Of one passage."""


class RetrieverError(Exception):
    """Why a search got no answer, in words that complete "The search failed: the retriever ..."."""


class HttpRetriever:
    """A server that is asked for passages.

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
        if not is_http_url(url):
            raise EnvParamsError(
                f"url is {shorten(url, 100)!r}, but must look like http://127.0.0.1:8000/retrieve"
            )
        self._client = HttpClient(url, max_bytes=MAX_ANSWER_BYTES)
        self._protocol = protocol
        self._timeout_s = timeout_s

    def search(self, query: str, most: int) -> tuple[Passage, ...]:
        """The passages that the server names, at most `most`.

        Raises:
            RetrieverError: no answer in time, an error, or no answer of the agreed shape.
        """
        if self._protocol == "search_r1":
            body: dict[str, Any] = {"queries": [query], "topk": most, "return_scores": True}
        else:
            body = {"query": query, "top_k": most}
        try:
            answer = self._client.post_json("", body, timeout_s=self._timeout_s)
        except HttpError as error:
            raise RetrieverError(str(error)) from None
        return _passages(answer, self._protocol, most)


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
