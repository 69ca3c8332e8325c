"""Parameters from YAML or a command line -> a frozen config dataclass, checked strictly."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import ConfigDict, InstanceOf, PydanticUserError, TypeAdapter, ValidationError

from echoscope.text import amounts
from echoscope.text.did_you_mean import did_you_mean

from .base import EnvParamsError


def build_config(env_id: str, config_type: type[Any], params: Mapping[str, Any]) -> Any:
    """An instance of the dataclass `config_type` from `params`.

    Raises `EnvParamsError` for an unknown name, a wrong type, or a value that the dataclass
    refuses. Integers pass for floats and lists for tuples, nothing else is converted.
    """
    fields = _fields(config_type)  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in params.items():
        if name not in fields:
            if name == "observation":
                raise EnvParamsError(
                    f"{env_id} shows its observations in one format only: leave out the parameter "
                    "'observation'"
                )
            require_known(f"{env_id} has no parameter", name, fields)
        try:
            values[name] = _converted(value, fields[name].adapter)
        except ValidationError:
            raise EnvParamsError(
                f"{env_id}: {name} is {value!r}, but must be {describe_type(fields[name].hint)}"
            ) from None
    missing = [name for name in fields if fields[name].is_required and name not in values]
    if missing:
        raise EnvParamsError(f"{env_id} needs the parameter {missing[0]!r}")
    try:
        return config_type(**values)
    except EnvParamsError as error:
        raise EnvParamsError(f"{env_id}: {error}") from None


def described_parameters(config_type: type[Any]) -> dict[str, dict[str, Any]]:
    """Each parameter's name to its `type` in words and its `default`, if it has one.

    A parameter that is one of a few values also has them as `values`.
    """
    described: dict[str, dict[str, Any]] = {}
    for name, field in _fields(config_type).items():  # type: ignore[arg-type]
        described[name] = {"type": describe_type(field.hint)}
        if get_origin(field.hint) is Literal:
            described[name]["values"] = list(get_args(field.hint))
        if not field.is_required:
            described[name]["default"] = field.default
    return described


def require(condition: bool, message: str) -> None:
    """Raise `EnvParamsError(message)` unless `condition`: for `__post_init__` of configs."""
    if not condition:
        raise EnvParamsError(message)


def require_known(lacking: str, name: str, allowed: Collection[str]) -> None:
    """Raise `EnvParamsError`, which begins with `lacking`, unless a name is known."""
    if name not in allowed:
        raise EnvParamsError(f"{lacking} {name!r}{did_you_mean(str(name), allowed, most=3)}")


def require_within(config: Any, where: str = "", /, **bounds: tuple[float, float]) -> None:
    """Raise `EnvParamsError` unless each named parameter that is not None lies in its bounds.

    Args:
        where: what the bounds hold for, such as " on a board of 4x4"; ends the message.
        bounds: (lowest, highest), both allowed; an infinite highest is "at least".
    """
    for name, (lowest, highest) in bounds.items():
        value = getattr(config, name)
        is_within = value is None or (lowest <= value <= highest and value != math.inf)
        rule = f"must be {amounts.bounds(lowest, highest)}"
        require(is_within, f"{name} is {value}, but {rule}{where}")


def board_shape(size: int | tuple[int, int], smallest: int, largest: int) -> tuple[int, int]:
    """(rows, columns) of a parameter `size`, which is one side or both.

    Raises:
        EnvParamsError: a side lies outside [smallest, largest].
    """
    rows, cols = (size, size) if isinstance(size, int) else size
    require(
        smallest <= rows <= largest and smallest <= cols <= largest,
        f"size is {size}, but each side must be {amounts.bounds(smallest, largest)}",
    )
    return rows, cols


_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)


class _Field(NamedTuple):
    hint: Any
    adapter: TypeAdapter[Any]
    default: Any

    @property
    def is_required(self) -> bool:
        return self.default is dataclasses.MISSING


@functools.lru_cache
def _fields(config_type: type[Any]) -> Mapping[str, _Field]:
    """What a config can be given, by name."""
    hints = get_type_hints(config_type)
    return {
        field.name: _Field(
            hints[field.name],
            _adapter(hints[field.name]),
            field.default
            if field.default_factory is dataclasses.MISSING
            else field.default_factory(),
        )
        for field in dataclasses.fields(config_type)
        if field.init
    }


def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint, config=_STRICT)
    except PydanticUserError:  # a dataclass or a model, which has a configuration of its own
        return TypeAdapter(InstanceOf[hint])


def _converted(value: Any, adapter: TypeAdapter[Any]) -> Any:
    """The value as its field has it. Raises ValidationError where it does not fit."""
    try:
        return adapter.validate_python(value)
    except ValidationError:  # YAML and JSON have lists where a config has tuples
        return adapter.validate_python(_with_tuples(value))


def _with_tuples(value: Any) -> Any:
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def describe_type(hint: Any) -> str:
    """A type as a user writes its values: "a number or null"."""
    origin = get_origin(hint)
    if hint is type(None):
        return "null"
    if origin is Literal:
        return "one of " + ", ".join(repr(arg) for arg in get_args(hint))
    if origin in (Union, types.UnionType):
        return " or ".join(describe_type(option) for option in get_args(hint))
    if origin is tuple:
        args = get_args(hint)
        if len(args) == 2 and args[1] is Ellipsis:
            return f"a list of ({describe_type(args[0])})"
        return "[" + ", ".join(describe_type(arg) for arg in args) + "]"
    names = {int: "an integer", float: "a number", str: "a string", bool: "true or false"}
    if hint in names:
        return names[hint]
    return "a mapping" if origin is not None else str(getattr(hint, "__name__", hint))
