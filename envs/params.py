"""Parameters from YAML or a command line -> a frozen config dataclass, checked strictly."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from echoscope.text.did_you_mean import did_you_mean

from .base import EnvParamsError


def build_config(env_id: str, config_type: type[Any], params: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `config_type` from `params`.

    Raises `EnvParamsError` for an unknown name, a wrong type, or a value that the dataclass
    refuses. Integers pass for floats and lists for tuples, nothing else is converted.
    """
    hints = get_type_hints(config_type)
    fields = {field.name for field in dataclasses.fields(config_type) if field.init}
    values: dict[str, Any] = {}
    for name, value in params.items():
        if name not in fields:
            raise EnvParamsError(
                f"{env_id} has no parameter {name!r}{did_you_mean(str(name), fields, most=3)}"
            )
        ok, values[name] = _convert(value, hints[name])
        if not ok:
            raise EnvParamsError(
                f"{env_id}: {name} is {value!r}, but must be {_describe(hints[name])}"
            )
    missing = [
        field.name
        for field in dataclasses.fields(config_type)
        if field.init
        and field.name not in values
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise EnvParamsError(f"{env_id} needs the parameter {missing[0]!r}")
    try:
        return config_type(**values)
    except EnvParamsError as error:
        raise EnvParamsError(f"{env_id}: {error}") from None


def require(condition: bool, message: str) -> None:
    """Raise `EnvParamsError(message)` unless `condition`: for `__post_init__` of configs."""
    if not condition:
        raise EnvParamsError(message)


def _convert(value: Any, hint: Any) -> tuple[bool, Any]:
    """(whether `value` fits `hint`, the converted value)."""
    origin = get_origin(hint)
    if hint is Any:
        return True, value
    if hint is None or hint is type(None):
        return value is None, value
    if origin is Literal:
        return any(type(value) is type(arg) and value == arg for arg in get_args(hint)), value
    if origin in (Union, types.UnionType):
        for option in get_args(hint):
            ok, converted = _convert(value, option)
            if ok:
                return True, converted
        return False, value
    if origin is tuple:
        return _convert_tuple(value, get_args(hint))
    if origin is not None:  # Mapping[str, Any] and the like
        return isinstance(value, origin), value
    if hint is float and type(value) is int:
        return True, float(value)
    if isinstance(value, bool) and hint is not bool:
        return False, value
    return isinstance(value, hint), value


def _convert_tuple(value: Any, hints: tuple[Any, ...]) -> tuple[bool, Any]:
    if not isinstance(value, list | tuple):
        return False, value
    if len(hints) == 2 and hints[1] is Ellipsis:
        hints = (hints[0],) * len(value)
    if len(hints) != len(value):
        return False, value
    pairs = [_convert(item, hint) for item, hint in zip(value, hints, strict=True)]
    return all(ok for ok, _ in pairs), tuple(item for _, item in pairs)


def _describe(hint: Any) -> str:
    origin = get_origin(hint)
    if hint is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(option) for option in get_args(hint))
    if origin is tuple:
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return f"a list of ({_describe(args[0])})"
        return "[" + ", ".join(_describe(arg) for arg in args) + "]"
    words = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if hint in words:
        return words[hint]
    return "a mapping" if origin is not None else str(getattr(hint, "__name__", hint))
