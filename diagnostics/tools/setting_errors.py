"""What is wrong with a setting, in one sentence: the key, the value, the rule and the way out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from echoscope.text.amounts import BOUNDS
from echoscope.text.did_you_mean import did_you_mean

M = TypeVar("M", bound=BaseModel)

_KINDS_OF_VALUES = {
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
"""Errors of pydantic that name a Python type, and what a person writes in YAML or Python."""
_LIMITS = {
    "greater_than_equal": ("minimum", "ge"),
    "greater_than": ("exclusiveMinimum", "gt"),
    "less_than_equal": ("maximum", "le"),
    "less_than": ("exclusiveMaximum", "lt"),
}
"""Errors of pydantic about a bound: the same rule of JSON Schema, and where the bound stands."""


class SettingError(ValueError):
    """A setting is wrong; the message names the value, the rule and the way out."""


def checked(model: type[M], values: Any, path: Sequence[str]) -> M:
    """The values as a model.

    Args:
        path: where the values stand, for the sentence: ("alarms",) for `alarms.actions`.

    Raises:
        SettingError: names the first wrong key, its value and the rule.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingError(describe(error, model, path)) from None


def describe(error: ValidationError, root: type[BaseModel], path: Sequence[str] = ()) -> str:
    """The first error of a model `root`, which stands at `path`, in a sentence."""
    first = error.errors()[0]
    loc = [str(part) for part in first["loc"]]
    parts = [*path, *_walk(loc, root)[0]]
    key, kind = ".".join(parts), first["type"]
    if kind == "value_error":
        return str(first["ctx"]["error"])
    if kind == "extra_forbidden":
        choices = [f"{'.'.join(parts[:-1])}.kind={name}" for name in _kinds_with(loc, root)]
        way_out = f"; for this key set {' or '.join(choices)}" if choices else ""
        return f"unknown key '{key}'{did_you_mean(loc[-1], field_names(loc[:-1], root))}{way_out}"
    if kind == "missing":
        is_typed = not path or path[0] == "diagnostics"
        return f"{key} is missing" + f"; give it in the recipe or as {key}=VALUE" * is_typed
    if kind == "union_tag_invalid":
        kinds = first["ctx"]["expected_tags"].replace("'", "")
        return f"{key}.kind is {first['ctx']['tag']!r}, but must be one of {kinds}"
    if kind == "union_tag_not_found" and isinstance(first["input"], Mapping):
        models = models_in(_walk(loc, root)[1])
        kinds = ", ".join(name for model in models for name in _kinds(model))
        return f"{key}.kind is missing, but must be one of {kinds}"
    if loc[-1:] == ["[key]"] and kind == "literal_error":
        names = re.findall(r"'([^']*)'", first["ctx"]["expected"])
        return f"unknown key '{'.'.join(parts[:-1])}'{did_you_mean(loc[-2], names)}"
    rule = _bound(first) if kind in _LIMITS else _rule(first["msg"])
    if kind in _KINDS_OF_VALUES:
        rule = f"must be {_KINDS_OF_VALUES[kind]}"
    if kind == "string_pattern_mismatch" and loc[-1] == "dashboard_url":
        rule = "must be an address such as http://gpu-box:8501"
    given = first["input"]
    is_secret = "targets" in loc  # an address may stand there
    return f"{key} is {f'a {type(given).__name__}' if is_secret else shown(given)}, but {rule}"


def _bound(error: Any) -> str:
    """What a bound demands, worded as for a setting of a live run."""
    name, value = _LIMITS[error["type"]]
    return f"must be {BOUNDS[name]} {error['ctx'][value]}"


def _rule(message: str) -> str:
    """What pydantic demands, to stand after "but".

    >>> _rule("Input should be a valid boolean")
    'must be a valid boolean'
    >>> _rule("Tuple should have at least 1 item after validation, not 0")
    'must have at least 1 item'
    """
    rule = message[0].lower() + message[1:]
    rule = re.sub(r"^(input|string|list|tuple|dictionary) should ", "must ", rule)
    return re.sub(r" after validation, not \d+$", "", rule.replace(" should ", " must ", 1))


def shown(value: Any, most: int = 120) -> str:
    """A value as a message shows it: short, and on one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python spells no number of more than 4,300 digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= most else f"{text[:most]}..."


def _walk(loc: Sequence[str], root: Any) -> tuple[list[str], Any]:
    """The path as a person writes it, without the tags that pydantic adds for unions, and the
    annotation at its end."""
    out: list[str] = []
    annotation: Any = root
    for part in loc:
        models = models_in(annotation)
        tagged = [model for model in models if part in _kinds(model)]
        if tagged and len(models) > 1:
            annotation = tagged[0]
            continue
        out.append(part)
        annotation = step(models, annotation, part)
    return out, annotation


def field_names(loc: Sequence[str], root: Any) -> list[str]:
    """Names of the settings below a path of the model `root`."""
    annotation = _walk(loc, root)[1]
    return sorted({name for model in models_in(annotation) for name in model.model_fields})


def _kinds_with(loc: Sequence[str], root: Any) -> list[str]:
    """The other kinds that have the key at the end of the path, if what has it comes in kinds."""
    models = models_in(_walk(loc[:-2], root)[1])
    if len(loc) < 2 or not any(loc[-2] in _kinds(model) for model in models):
        return []
    return [kind for model in models if loc[-1] in model.model_fields for kind in _kinds(model)]


def step(models: list[type[BaseModel]], annotation: Any, part: str) -> Any:
    """The annotation of `part` below another one; None where nothing is known of it."""
    for model in models:
        if part in model.model_fields:
            return model.model_fields[part].annotation
    if get_origin(annotation) in (list, tuple):
        return get_args(annotation)[0]
    return None


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The models an annotation may hold."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    origin = get_origin(annotation)
    if origin is Annotated:
        return models_in(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [model for arg in get_args(annotation) for model in models_in(arg)]
    return []


def _kinds(model: type[BaseModel]) -> list[str]:
    """The tags that stand for a model in a union."""
    info = model.model_fields.get("kind")
    return [] if info is None else [str(value) for value in get_args(info.annotation)]
