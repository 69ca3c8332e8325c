"""Groups of metrics as pages show them."""

from __future__ import annotations

import pytest

from echoscope.dashboard.page.metric_sections import section, section_title


@pytest.mark.parametrize(
    ("key", "name"),
    [("policy/entropy", "policy"), ("loss", "other"), ("/x", "other"), ("a/b/c", "a")],
)
def test_sections_are_what_stands_before_the_first_slash(key: str, name: str) -> None:
    assert section(key) == name


def test_an_unknown_section_keeps_its_name() -> None:
    assert section_title("my_own") == "my own"
