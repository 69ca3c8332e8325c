"""Titles inside a sentence."""

from __future__ import annotations

import doctest

from echoscope.text import titles


def test_a_name_keeps_its_capital_letter() -> None:
    results = doctest.testmod(titles)
    assert results.attempted
    assert not results.failed
