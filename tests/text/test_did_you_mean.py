"""The hint for a mistyped name."""

from __future__ import annotations

import pytest

from echoscope.text.did_you_mean import MOST_LISTED, did_you_mean

KNOWN = ("selection.value", "optim.lr", "size", "slip")


@pytest.mark.parametrize(
    ("name", "most", "hint"),
    [
        ("optim.lrr", 1, "; did you mean 'optim.lr'?"),
        ("value", 1, "; did you mean 'selection.value'?"),
        ("sise", 3, "; did you mean 'size' or 'slip'?"),
        ("sise", 1, "; did you mean 'size'?"),
        ("", 1, "; known: optim.lr, selection.value, size, slip"),
        ("nothing like it", 3, "; known: optim.lr, selection.value, size, slip"),
    ],
)
def test_the_hint(name: str, most: int, hint: str) -> None:
    assert did_you_mean(name, KNOWN, most=most) == hint


def test_no_names_or_too_many_are_not_listed() -> None:
    assert did_you_mean("x", []) == ""
    assert did_you_mean("x", [f"name_{n}" for n in range(MOST_LISTED + 1)]) == ""
