"""The form of the live settings, apart from its drawing."""

from __future__ import annotations

from typing import Any

import pytest

from echoscope.dashboard.steer.knobs import rule_words, typed_value
from echoscope.dashboard.words import setting_words


@pytest.mark.parametrize(
    ("value", "typed_text"),
    [
        (0.00015, "0.00015"),
        (1e-9, "1e-09"),
        (1.0, "1"),
        (3, "3"),
        (True, "true"),
        (None, "null"),
        ("top_p", "top_p"),
        ({}, "none"),
        ({"ECHO_TRAP": "stop"}, "ECHO_TRAP: stop"),
        ([1, 2], "[1, 2]"),
    ],
)
def test_values_as_a_person_would_type_them(value: Any, typed_text: str) -> None:
    assert setting_words(value) == typed_text


@pytest.mark.parametrize("value", [0.1 + 0.2, 1 / 3, 1e-12, 123456.789])
def test_a_number_survives_being_shown_and_typed_again(value: float) -> None:
    assert typed_value(setting_words(value), {"type": "number"}) == pytest.approx(value, rel=1e-11)


@pytest.mark.parametrize("text", ["", "fast", "1,5", "0x1f", "1e", "__import__('os')"])
def test_what_is_no_number_is_left_for_the_check_to_refuse(text: str) -> None:
    assert typed_value(text, {"type": "number"}) == text


def test_rules_in_words() -> None:
    schema = {"type": "integer", "minimum": 0, "exclusiveMaximum": 9}
    assert rule_words(schema) == "a whole number, at least 0, less than 9"
    assert rule_words({"type": "string"}) == ""
    number_or_none = {"anyOf": [{"type": "number", "minimum": 1}, {"type": "null"}]}
    assert rule_words(number_or_none) == "a number, at least 1, or none"


@pytest.mark.parametrize(
    ("text", "value"),
    [("2.5", 2.5), ("none", None), (" Null ", None), ("", None), ("many", "many")],
)
def test_a_number_that_may_be_none_is_typed_as_either(text: str, value: Any) -> None:
    schema = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    assert typed_value(text, schema) == value
    assert type(typed_value(text, schema)) is type(value)
