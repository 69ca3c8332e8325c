"""Widgets for the live settings of a run, made from the schema that the run wrote down."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import streamlit as st

from echoscope.text.amounts import BOUNDS

from ..words import plain, setting_words

_CLEAN = re.compile(r"[A-Za-z0-9_.]+")
"""A key that no Markdown stands in: readers hear what is written before it is drawn."""


def rule_words(schema: Mapping[str, Any]) -> str:
    """What a value must be: `a whole number, at least 0`."""
    kinds = {"integer": "a whole number", "number": "a number"}
    schema, may_be_none = _number_schema(schema)
    parts = [kinds[schema["type"]]] if schema.get("type") in kinds else []
    parts += [f"{text} {schema[rule]}" for rule, text in BOUNDS.items() if rule in schema]
    return ", ".join(parts) + (", or none" if may_be_none else "")


def _number_schema(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema of the number in a setting that may also be none, and whether it may."""
    options = schema.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        numbers = [option for option in options if option != {"type": "null"}]
        if len(numbers) == 1 and isinstance(numbers[0], Mapping):
            return numbers[0], True
    return schema, False


def typed_value(text: str, schema: Mapping[str, Any]) -> Any:
    """What was typed into the field of a setting; the text itself where it is not fit.

    The check of all settings refuses what is not fit, in its own words.

    >>> typed_value("none", {"anyOf": [{"type": "number"}, {"type": "null"}]})
    >>> typed_value(" 3", {"type": "integer"}), typed_value("3", {"type": "string"})
    (3, '3')
    >>> typed_value('{"KL_DRIFT": "stop"}', {"type": "object"})
    {'KL_DRIFT': 'stop'}
    """
    number, may_be_none = _number_schema(schema)
    kind = number.get("type")
    if may_be_none and text.strip().lower() in ("", "none", "null"):
        return None
    if kind not in ("integer", "number", "object", "array"):
        return text
    for read in (int, float) if kind in ("integer", "number") else (json.loads,):
        try:
            return read(text.strip())
        except (ValueError, RecursionError):
            continue
    return text


def form(run_id: str, live_knobs: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a choice of settings, and a widget for each that is chosen; what was changed, by key.

    Somebody else's change of a setting, once applied, replaces what was typed for it here.
    """
    schemas = {key: schema for key, schema in live_knobs.items() if isinstance(schema, Mapping)}
    chosen = st.multiselect(
        "Settings to change",
        [*schemas],
        key=f"knobs:{run_id}",
        format_func=lambda key: f"{key}: {setting_words(current.get(key))[:60]}",
        placeholder="Each with the value in force",
    )
    changed: dict[str, Any] = {}
    for key in chosen:
        value = current.get(key)
        new = _widget(run_id, key, schemas[key], value)
        if new != value or isinstance(new, bool) is not isinstance(value, bool):
            changed[key] = new
    return changed


def _widget(run_id: str, key: str, schema: Mapping[str, Any], value: Any) -> Any:
    about = [str(schema.get("description", "")), rule_words(schema)]
    description = ". ".join(plain(part.rstrip("."), 300) for part in about if part)
    label = key if _CLEAN.fullmatch(key) else plain(key)
    # The value is part of the identity: once it changes, the widget starts from the new one.
    identity = f"knob:{run_id}:{key}:{json.dumps(value, sort_keys=True, default=str)}"
    choices = schema.get("enum")
    if isinstance(choices, list):
        options = choices if value in choices else [value, *choices]
        return st.selectbox(
            label,
            options,
            options.index(value),
            key=identity,
            help=description,
            format_func=setting_words,
        )
    if schema.get("type") == "boolean":
        return st.toggle(label, bool(value), key=identity, help=description)
    before = json.dumps(value) if isinstance(value, dict | list) else setting_words(value)
    text = st.text_input(label, before, key=identity, help=description, max_chars=2_000)
    return value if text == before else typed_value(text, schema)
