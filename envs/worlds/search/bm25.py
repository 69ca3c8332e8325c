"""Full-text search by BM25, the same order in every process."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

import numpy as np

MAX_QUERY_CHARS = 400
"""What a query is cut to: longer ones come from no reader."""
_WORD = re.compile(r"[^\W_]+")


class Bm25Index:
    """Texts that can be searched. Building the index of a large corpus takes long.

    Ranks by BM25 as Lucene computes it (k1 1.5, b 0.75), through `bm25s`. Words are runs of letters
    and digits; letter case and accents do not matter, and no word is left out.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        import bm25s  # an optional package

        self._index = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
        self._index.index([words_of(text) for text in texts], show_progress=False)

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


def words_of(text: str) -> list[str]:
    """The words of a text, in lower case and without accents.

    >>> words_of("Oak-wood DÉCOR, 120 cm")
    ['oak', 'wood', 'decor', '120', 'cm']
    """
    letters = text if text.isascii() else unicodedata.normalize("NFKD", text)
    return _WORD.findall("".join(c for c in letters if not unicodedata.combining(c)).casefold())
