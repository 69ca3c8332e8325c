"""The similarity is the one of scikit-learn's TF-IDF, for any text."""

from __future__ import annotations

import doctest

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer

from echoscope.diagnostics.measure.text import similarity as text_similarity
from echoscope.diagnostics.measure.text.sample import WORD_PATTERN
from echoscope.diagnostics.measure.text.similarity import similarity

SIGNS = st.sampled_from("ab C\u00e9\n.\u8d70\U0001f600")
TEXT = st.lists(st.text(SIGNS, max_size=12), min_size=1, max_size=8)


def reference(texts: list[str]) -> np.ndarray:
    padded = [f" {text} " for text in texts]
    by_word = CountVectorizer(token_pattern=WORD_PATTERN, ngram_range=(1, 2))
    by_char = CountVectorizer(analyzer="char", ngram_range=(3, 5))
    total = np.zeros((len(texts), len(texts)))
    for vectors in (by_word, by_char):
        weighted = TfidfTransformer().fit_transform(vectors.fit_transform(padded))
        total += (weighted @ weighted.T).toarray()
    return total / 2


@given(TEXT)
def test_it_is_scikit_learn_s(texts: list[str]) -> None:
    if any(text.strip() for text in texts):
        np.testing.assert_allclose(similarity(texts), reference(texts), atol=1e-12)
    else:
        assert (similarity(texts) == 0).all()


def test_broken_unicode_is_text_too() -> None:
    assert similarity(["\ud800 a", "\ud800 a", "b"])[0, :2] == pytest.approx([1, 1])


def test_examples() -> None:
    assert doctest.testmod(text_similarity).failed == 0
