"""Passages: what a search gives, read from a corpus file or from a server's answer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...base import EnvUnavailableError
from ..rows import read_rows
from .bm25 import Bm25Index, words_of

MADE_PASSAGES = Path(__file__).parents[2] / "data" / "search_passages.jsonl.gz"
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
        self._index.build()

    def search(self, query: str, most: int) -> tuple[Passage, ...]:
        """The passages that fit a query best, at most `most`; none that has no word of it."""
        return tuple(self._passages[document] for document, _ in self._index.best(query, most))
