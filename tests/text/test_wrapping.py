"""Lines that fit a width break between words, and lose nothing but blanks."""

from __future__ import annotations

import pytest

from echoscope.text.wrapping import wrapped


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
