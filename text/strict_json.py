"""Values as strict JSON can hold them: a number that is not finite becomes null."""

from __future__ import annotations

import base64
import dataclasses
import decimal
import json
import math
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")


def finite_or_none(value: float | None) -> float | None:
    """The number, or None where it is NaN, infinite or missing."""
    return value if value is not None and math.isfinite(value) else None


def json_value(value: Any) -> Any:
    """A value built of JSON's own kinds alone; NaN and infinities as None.

    Records become objects by the names of their fields, enumerations their values, arrays and
    tuples lists; bytes become base64; what JSON has no form for (a date, a path) becomes its text.

    >>> json_value({"rate": float("nan"), "steps": (1, 2)})
    {'rate': None, 'steps': [1, 2]}
    """
    if isinstance(value, Enum):
        return json_value(value.value)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: json_value(getattr(value, field.name))
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): json_value(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [json_value(entry) for entry in value]
    if hasattr(value, "tolist"):  # an array, or a scalar of numpy
        return json_value(value.tolist())
    return str(value)


def value_at(value: Any, kind: type[T], *path: str) -> T | None:
    """The value inside objects at a path of names; None where there is none of this kind.

    >>> value_at({"envs": {"seed": 3}}, int, "envs", "seed"), value_at({"seed": True}, int, "seed")
    (3, None)
    """
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    is_flag = kind is int and isinstance(value, bool)
    return value if isinstance(value, kind) and not is_flag else None


def parsed_json(text: str | bytes) -> Any:
    """The value of JSON in which no object names a key twice and every number is one.

    Raises:
        ValueError: it is none, or nested too deeply.

    >>> parsed_json('{"lr": 1, "lr": 2}')
    Traceback (most recent call last):
    ValueError: the key 'lr' stands twice in one object
    """
    try:
        return json.loads(text, object_pairs_hook=each_key_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The pairs of an object; a ValueError where a key stands twice."""
    value: dict[str, Any] = {}
    for key, entry in pairs:
        if key in value:
            raise ValueError(f"the key {key[:80]!a} stands twice in one object")
        value[key] = entry
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
