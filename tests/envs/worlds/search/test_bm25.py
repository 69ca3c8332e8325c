"""The index that `webshop` and `search_qa` share."""

from __future__ import annotations

import math

import pytest

from echoscope.envs.worlds.search.bm25 import MAX_QUERY_CHARS, Bm25Index, words_of

TEXTS = ["red wool hat", "blue wool scarf", "red red lamp", "oak desk"]


def test_the_scores_are_those_of_bm25() -> None:
    """By hand: idf = ln(1 + (N - n + 0.5) / (n + 0.5)), tf / (tf + k1 (1 - b + b len / mean))."""
    lengths = [3, 3, 3, 2]
    mean = sum(lengths) / 4
    idf = math.log(1 + (4 - 2 + 0.5) / (2 + 0.5))
    scores = {
        document: idf * count / (count + 1.5 * (1 - 0.75 + 0.75 * lengths[document] / mean))
        for document, count in ((0, 1), (2, 2))
    }
    hits = Bm25Index(TEXTS).best("RED", 10)
    assert [document for document, _ in hits] == [2, 0]
    assert dict(hits) == pytest.approx(scores, rel=1e-5)


def test_ties_keep_the_order_of_the_texts_and_texts_without_a_word_are_left_out() -> None:
    index = Bm25Index(TEXTS)
    assert [document for document, _ in index.best("wool", 10)] == [0, 1]
    assert [document for document, _ in index.best("wool", 1)] == [0]


@pytest.mark.parametrize(
    "query", ["", " ", "zebra", "\x00", "\ud800", "😀", "[](){}", "wool" * 250_000]
)
def test_a_query_without_a_known_word_has_no_result(query: str) -> None:
    assert Bm25Index(TEXTS).best(query, 10) == []


def test_only_the_beginning_of_a_long_query_counts() -> None:
    index = Bm25Index(TEXTS)
    assert index.best("x" * (MAX_QUERY_CHARS + 1) + " wool", 10) == []
    assert index.best(f"wool {'x' * 1_000_000}", 10) == index.best("wool", 10)


def test_words() -> None:
    assert words_of("T-shirt_L 9.5 Ärmel") == ["t", "shirt", "l", "9", "5", "armel"]
    # One letter with an accent, and a letter with the accent as a character of its own.
    assert words_of("S\u00e3o") == words_of("Sa\u0303o") == ["sao"]
