"""Text as people read it: the examples of its docstrings, and lines that fit."""

from __future__ import annotations

import doctest

import pytest

from echoscope.text import sentences
from echoscope.text.sentences import wrapped


def test_the_examples_of_the_docstrings_hold() -> None:
    results = doctest.testmod(sentences)
    assert results.attempted
    assert not results.failed


@pytest.mark.parametrize(
    ("line", "lines"),
    [
        ("", [""]),
        ("  a  b", ["  a  b"]),
        ("the longest text", ["the longest", "text"]),
        ("x" * 25, ["x" * 11, "x" * 11, "xxx"]),
        (" " * 20, [""]),
    ],
)
def test_a_line_in_eleven_columns(line: str, lines: list[str]) -> None:
    assert wrapped(line, 11) == lines
