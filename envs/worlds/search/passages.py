"""Passages: what a search gives, read from a corpus file or from a server's answer.

Servers are asked over HTTP in the shapes of Search-R1 and RAGEN:

    search_r1  {"queries": ["..."], "topk": 3, "return_scores": true}
               -> {"result": [[{"document": {"id": ..., "contents": ...}, "score": ...}, ...]]}
    ragen      {"query": "...", "top_k": 3}  ->  {"results": [{"id": ..., "content": ...}, ...]}

Nothing that a server sends is trusted: time and size of an answer are bounded, its JSON is checked,
its text is cleaned.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from echoscope.text.network import is_http_url

from ...base import EnvParamsError, EnvUnavailableError, shorten
from ..remote.http_client import HttpClient, HttpError
from ..rows import read_rows, shipped
from .bm25 import Bm25Index, words_of

MADE_PASSAGES = shipped("search_passages.jsonl.gz")
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_TEXT_FIELDS = ("contents", "content", "text", "paragraph_text")


@dataclass(frozen=True, slots=True)
class Passage:
    """A text with a title (may be empty); `id` is unique in its corpus."""

    id: str
    title: str
    text: str

    def shown(self, most: int) -> str:
        """Title and text on one line, with at most `most` characters of the text."""
        text = self.text if len(self.text) <= most else f"{self.text[:most].rstrip()} ..."
        return f"{self.title}: {text}" if self.title else text


def plain_text(text: str, most: int | None = None) -> str:
    """A foreign text on one line, at most `most` characters of it, as UTF-8 can write it.

    >>> plain_text(" a\\n\\x00b \\ud800")
    'a b ?'
    """
    short = text[:most].encode("utf-8", "replace").decode("utf-8")
    return " ".join(_CONTROLS.sub(" ", short).split())


def read_passages(path: str) -> tuple[Passage, ...]:
    """The passages of a corpus file, in its order.

    Args:
        path: of a `.jsonl`, `.jsonl.gz`, `.json` (a list) or `.parquet` file. A row has `contents`,
            whose first line is the title (as Search-R1's corpora do), or `title` and `text`.

    Raises:
        EnvUnavailableError: the file cannot be read, or a row is no passage.
    """
    passages = []
    for number, row in enumerate(read_rows(path, (), keep=False), start=1):
        passage = passage_of(row, str(number))
        if passage is None:
            raise EnvUnavailableError(
                f"{path}, row {number} is no passage: it needs the text 'contents', or 'title' and "
                "'text'"
            )
        passages.append(passage)
    return tuple(passages)


def passage_of(row: Mapping[str, Any], number: str, most: int | None = None) -> Passage | None:
    """The passage of a row; None where it has no text.

    Args:
        number: its id, if the row has none.
        most: how many characters of the text are kept.
    """
    text = next((row[name] for name in _TEXT_FIELDS if isinstance(row.get(name), str)), None)
    if text is None:
        return None
    title = row.get("title")
    if not isinstance(title, str):
        first, newline, rest = text.partition("\n")
        title, text = (first, rest) if newline and rest.strip() else ("", text)
    text = plain_text(text, most)
    if not text:
        return None
    name = row.get("id", row.get("_id"))
    is_named = isinstance(name, str | int) and not isinstance(name, bool)
    title = plain_text(title, 200).strip('"')
    return Passage(plain_text(str(name), 200) if is_named else number, title, text)


class PassageIndex:
    """A corpus that is searched by BM25; titles count as text.

    Raises:
        EnvUnavailableError: no passage has a word.
    """

    def __init__(self, passages: Sequence[Passage]) -> None:
        texts = [f"{passage.title} {passage.text}" for passage in passages]
        if not any(words_of(text) for text in texts):
            raise EnvUnavailableError("the corpus has no passage with a word in it")
        self._passages = passages
        self._index = Bm25Index(texts)

    def search(self, query: str, most: int) -> tuple[Passage, ...]:
        """The passages that fit a query best, at most `most`; none that has no word of it."""
        return tuple(self._passages[document] for document, _ in self._index.best(query, most))


Protocol = Literal["search_r1", "ragen"]
MAX_ANSWER_BYTES = 4 << 20
MAX_TEXT_CHARS = 20_000
"""Of one passage."""


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
            HttpError: no answer in time, an error, or no answer of the agreed shape.
        """
        if self._protocol == "search_r1":
            body: dict[str, Any] = {"queries": [query], "topk": most, "return_scores": True}
        else:
            body = {"query": query, "top_k": most}
        answer = self._client.post_json("", body, timeout_s=self._timeout_s)
        return _passages(answer, self._protocol, most)


def _passages(answer: Any, protocol: Protocol, most: int) -> tuple[Passage, ...]:
    """The passages of an answer, whichever of the two shapes it has."""
    name = "result" if protocol == "search_r1" else "results"
    listed = answer.get(name) if isinstance(answer, dict) else None
    if protocol == "search_r1":
        listed = listed[0] if isinstance(listed, list) and len(listed) == 1 else None
    if not isinstance(listed, list):
        raise HttpError(f"answered with JSON that has no list {name!r} for the query")
    passages = []
    for number, entry in enumerate(listed[:most], start=1):
        document = entry.get("document", entry) if isinstance(entry, dict) else entry
        row = {"contents": document} if isinstance(document, str) else document
        passage = passage_of(row, str(number), MAX_TEXT_CHARS) if isinstance(row, dict) else None
        if passage is None:
            raise HttpError(f"answered with JSON whose entry {number} has no text")
        passages.append(passage)
    return tuple(passages)
