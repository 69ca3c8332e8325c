"""Full-text search by BM25, the same order in every process."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # an optional package
    import bm25s

MAX_QUERY_CHARS = 400
"""What a query is cut to: longer ones come from no reader."""
_SETTINGS: Mapping[str, Any] = {"method": "lucene", "k1": 1.5, "b": 0.75}
_WORD = re.compile(r"[^\W_]+")


class Bm25Index:
    """Texts that can be searched. The index is built at the first search.

    Ranks by BM25 as Lucene computes it (k1 1.5, b 0.75), through `bm25s`. Words are runs of letters
    and digits; letter case and accents do not matter, and no word is left out.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = texts

    def build(self) -> None:
        """Build the index now: the first search of a large corpus would take long."""
        _ = self._index

    def best(self, query: str, most: int) -> list[tuple[int, float]]:
        """Places and scores of the texts that share a word with the query, best first.

        Args:
            query: any text.
            most: texts that are returned at most. Of equal scores, the earlier text comes first.
        """
        vocabulary = self._index.vocab_dict
        query_words = sorted(
            word for word in set(words_of(query[:MAX_QUERY_CHARS])) if word in vocabulary
        )
        if not query_words:
            return []
        scores = self._index.get_scores(query_words)
        places = np.flatnonzero(scores > 0)
        if len(places) > most:  # sort only what can be among the best
            places = places[scores[places] >= np.partition(scores[places], -most)[-most]]
        ranked = places[np.argsort(-scores[places], kind="stable")][:most]
        return [(int(document), float(scores[document])) for document in ranked]

    @cached_property
    def _index(self) -> bm25s.BM25:
        import bm25s

        index = bm25s.BM25(**_SETTINGS)
        index.index([words_of(text) for text in self._texts], show_progress=False)
        return index


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case and without accents.

    >>> words_of("Oak-wood DÉCOR, 120 cm")
    ['oak', 'wood', 'decor', '120', 'cm']
    """
    letters = text if text.isascii() else unicodedata.normalize("NFKD", text)
    return _WORD.findall("".join(c for c in letters if not unicodedata.combining(c)).casefold())
