"""The form of the live settings, made from the schema that the run wrote down."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import streamlit as st

from echoscope.store.steer.steering import BOUNDS

from ..escaping import visible
from ..words import plain, setting_words

_GROUPS: Mapping[str, str] = {
    "selection": "Selection (the filter)",
    "optim": "Optimizer",
    "loss": "Objective",
    "off_policy": "Stale or foreign samples",
    "sampling": "Sampling",
    "dynamic_sampling": "Dynamic sampling",
    "curriculum": "Curriculum",
    "diagnostics": "Diagnostics and alarms",
    "": "Run",
}


def group_of(key: str) -> str:
    """Under which heading a setting stands.

    >>> group_of("selection.value"), group_of("steps"), group_of("eval.every")
    ('selection', '', '')
    """
    first, dot, _ = key.partition(".")
    return first if dot and first in _GROUPS else ""


def rule_words(schema: Mapping[str, Any]) -> str:
    """What a value must be: `a whole number, at least 0`."""
    kinds = {"integer": "a whole number", "number": "a number"}
    schema, may_be_none = _number_schema(schema)
    words = [kinds[schema["type"]]] if schema.get("type") in kinds else []
    words += [f"{text} {schema[rule]}" for rule, text in BOUNDS.items() if rule in schema]
    return ", ".join(words) + (", or none" if may_be_none else "")


def _number_schema(schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """The schema of the number in a setting that may also be none, and whether it may."""
    options = schema.get("anyOf")
    if isinstance(options, list) and {"type": "null"} in options:
        numbers = [one for one in options if one != {"type": "null"}]
        if len(numbers) == 1 and isinstance(numbers[0], Mapping):
            return numbers[0], True
    return schema, False


def parse_number(text: str) -> Any:
    """What was typed as a number; the text itself where it is none, for the check to refuse.

    >>> parse_number("1e-4"), parse_number(" 12 "), parse_number("fast")
    (0.0001, 12, 'fast')
    """
    text = text.strip()
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def typed_value(text: str, schema: Mapping[str, Any]) -> Any:
    """What was typed into the field of a setting: a number, none, or the text itself.

    >>> typed_value("none", {"anyOf": [{"type": "number"}, {"type": "null"}]})
    >>> typed_value("3", {"type": "integer"}), typed_value("3", {"type": "string"})
    (3, '3')
    """
    number, may_be_none = _number_schema(schema)
    if may_be_none and text.strip().lower() in ("", "none", "null"):
        return None
    return parse_number(text) if number.get("type") in ("integer", "number") else text


def form(run_id: str, live_knobs: Mapping[str, Any], current: Mapping[str, Any]) -> dict[str, Any]:
    """Draw a widget for each setting; what was changed, by key.

    Somebody else's change of a setting, once applied, replaces what was typed for it here.
    """
    changed: dict[str, Any] = {}
    for group, title in _GROUPS.items():
        keys = [key for key in live_knobs if group_of(key) == group]
        if not keys:
            continue
        st.caption(title)
        grid = st.grid("auto", min_column_width=190, gap="small")
        for key in keys:
            schema = live_knobs[key]
            if not isinstance(schema, Mapping):
                continue
            value = current.get(key)
            with grid.cell():
                new = _widget(run_id, key, schema, value)
            if new != value or isinstance(new, bool) is not isinstance(value, bool):
                changed[key] = new
    return changed


def _widget(run_id: str, key: str, schema: Mapping[str, Any], value: Any) -> Any:
    short = key.partition(".")[2] if group_of(key) else key
    label = plain(short)
    about = [str(schema.get("description", "")), rule_words(schema), f"Key: {key}"]
    words = ". ".join(plain(part.rstrip("."), 300) for part in about if part)
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
            help=words,
            format_func=setting_words,
        )
    if schema.get("type") == "boolean":
        return st.toggle(label, bool(value), key=identity, help=words)
    if schema.get("type") == "object" and _choices_by_name(schema) is not None:
        return _mapping_widget(identity, label, words, schema, value)
    if schema.get("type") == "object" and (defaults := _numbers_by_name(schema)) is not None:
        return _numbers_widget(identity, label, words, defaults, value)
    text = st.text_input(label, setting_words(value), key=identity, help=words, max_chars=200)
    return value if text == setting_words(value) else typed_value(text, schema)


def _choices_by_name(schema: Mapping[str, Any]) -> tuple[list[str], list[str]] | None:
    """Names and choices of a mapping from one to the other; None for any other mapping."""
    names = schema.get("propertyNames", {}).get("enum")
    below = schema.get("additionalProperties")
    choices = below.get("enum") if isinstance(below, Mapping) else None
    if isinstance(names, list) and isinstance(choices, list) and choices:
        return names, choices
    return None


def _mapping_widget(
    identity: str, label: str, words: str, schema: Mapping[str, Any], value: Any
) -> dict[str, Any]:
    """For each choice but the first, which names have it; a name without one has the first."""
    found = _choices_by_name(schema)
    assert found is not None
    names, choices = found
    old = dict(value) if isinstance(value, Mapping) else {}
    new = dict(old)
    for choice in choices[1:]:
        had = [name for name in names if old.get(name) == choice]
        picked = st.multiselect(
            f"{label}: {plain(choice)}",
            names,
            had,
            key=f"{identity}:{choice}",
            help=words,
            placeholder="none",
            format_func=visible,
        )
        for name in names:
            if name in picked:
                new[name] = choice
            elif name in had and new.get(name) == choice:
                new[name] = choices[0]
    return new


def _numbers_by_name(schema: Mapping[str, Any]) -> dict[str, float] | None:
    """Names with the numbers that hold unless another is set; None for any other mapping."""
    names = schema.get("propertyNames", {}).get("enum")
    defaults = schema.get("defaults")
    if not isinstance(names, list) or not isinstance(defaults, Mapping):
        return None
    return {name: defaults[name] for name in names if isinstance(defaults.get(name), int | float)}


def _numbers_widget(
    identity: str, label: str, words: str, defaults: Mapping[str, float], value: Any
) -> dict[str, Any]:
    """A field for each name that is picked; one that is dropped goes back to its default."""
    old = dict(value) if isinstance(value, Mapping) else {}
    moved = [name for name in defaults if old.get(name, defaults[name]) != defaults[name]]
    picked = st.multiselect(
        label,
        list(defaults),
        moved,
        key=f"{identity}:names",
        help=words,
        placeholder="all as usual",
        format_func=visible,
    )
    new = {name: entry for name, entry in old.items() if name in picked or name not in moved}
    new |= {name: defaults[name] for name in moved if name not in picked}
    for name in picked:
        usual = setting_words(defaults[name])
        shown = setting_words(old.get(name, defaults[name]))
        text = st.text_input(
            plain(f"{name} (usually {usual})"), shown, key=f"{identity}:{name}", max_chars=40
        )
        if text != shown:
            new[name] = parse_number(text)
    return new
