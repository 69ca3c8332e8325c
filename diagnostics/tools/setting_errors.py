"""What is wrong with a setting, in one sentence: the key, the value, the rule and the way out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from echoscope.text.did_you_mean import did_you_mean

M = TypeVar("M", bound=BaseModel)

_SECRETS = {
    "url_env": ("SLACK_HOOK", "the address", "ADDRESS"),
    "user_env": ("SMTP_USER", "the name of the user", "NAME"),
    "password_env": ("SMTP_PASSWORD", "the password", "PASSWORD"),
}
"""Settings that name an environment variable: an example of a name, what does not belong there,
and what the variable holds."""
_FORMS = {
    "sender": "an address such as me@example.com",
    "to": "an address such as me@example.com",
    "dashboard_url": "an address such as http://gpu-box:8501",
}
"""Settings with a pattern, and what it means."""
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
_UNNAMED = {"url": "url_env", "user": "user_env", "password": "password_env"}
"""Keys that people write for a secret itself, and the setting that they mean."""


class SettingError(ValueError):
    """A setting is wrong; the message names the value, the rule and the way out."""


Place = Callable[[Sequence[str]], str]
"""Where a setting stands, as the person who set it wrote it."""


def dotted(parts: Sequence[str]) -> str:
    """A place in a recipe, or on the command line.

    >>> dotted(["notify", "targets", "0", "kind"])
    'notify.targets.0.kind'
    """
    return ".".join(parts)


def argument(parts: Sequence[str]) -> str:
    """A place in an argument of a Python function.

    >>> argument(["notify", "targets", "0", "kind"])
    'notify["targets"][0]["kind"]'
    """
    first, *rest = parts
    return first + "".join(f"[{part}]" if part.isdecimal() else f'["{part}"]' for part in rest)


def checked(model: type[M], values: Any, path: Sequence[str], place: Place = dotted) -> M:
    """The values as a model.

    Args:
        path: where the values stand, for the sentence: ("alarms",) for `alarms.actions`.
        place: how that is written: `dotted` in a recipe, `argument` in Python.

    Raises:
        SettingError: names the first wrong key, its value and the rule.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise SettingError(describe(error, model, path, place)) from None


def describe(
    error: ValidationError,
    root: type[BaseModel],
    path: Sequence[str] = (),
    place: Place = dotted,
) -> str:
    """The first error of a model `root`, which stands at `path`, in a sentence."""
    errors = error.errors()
    secrets = [e for e in errors if e["type"] == "extra_forbidden" and e["loc"][-1] in _UNNAMED]
    first = (secrets or errors)[0]
    loc = [str(part) for part in first["loc"]]
    parts = [*path, *_plain(loc, root)]
    key = place(parts)
    if first["type"] == "extra_forbidden":
        known = field_names(loc[:-1], root)
        meant = _UNNAMED.get(loc[-1])
        if meant in known:
            return f"unknown key {_quoted(key)}; {_name_not_value(meant, meant)}"
        choices = [f"{place([*parts[:-1], 'kind'])}={kind}" for kind in _kinds_with(loc, root)]
        way_out = f"; for this key set {' or '.join(choices)}" if choices else ""
        return f"unknown key {_quoted(key)}{did_you_mean(loc[-1], known)}{way_out}"
    if first["type"] == "missing":
        is_typed = place is dotted and (not path or path[0] == "diagnostics")
        if loc[-1] in _SECRETS:
            example, value, word = _SECRETS[loc[-1]]
            return (
                f"{key} is missing: the NAME of an environment variable that holds {value}, such "
                f"as {example}; run: export {example}={word}"
            )
        return f"{key} is missing" + (
            f"; give it in the recipe or as {key}=VALUE" if is_typed else ""
        )
    if first["type"] == "union_tag_invalid":
        tag = first["ctx"]["tag"]
        kinds = ", ".join(_tags(first))
        return f"{place([*parts, 'kind'])} is {tag!r}, but must be one of {kinds}"
    if first["type"] == "union_tag_not_found" and isinstance(first["input"], Mapping):
        kinds = ", ".join(_kinds_at(loc, root))
        return f"{place([*parts, 'kind'])} is missing, but must be one of {kinds}"
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    if loc[-1:] == ["[key]"] and first["type"] == "literal_error":
        name = _quoted(place(parts[:-1]))
        return f"unknown key {name}{did_you_mean(loc[-2], _choices(first['ctx']['expected']))}"
    if loc and loc[-1] in _SECRETS:  # what stands there may be a secret
        return _name_not_value(key, loc[-1])
    rule = _bound(first) if first["type"] in _LIMITS else _rule(first["msg"])
    if first["type"] in _KINDS_OF_VALUES:
        rule = f"must be {_KINDS_OF_VALUES[first['type']]}"
    setting = next((part for part in reversed(loc) if not part.isdecimal()), "")
    if first["type"] == "string_pattern_mismatch" and setting in _FORMS:
        rule = f"must be {_FORMS[setting]}"
    is_address = "targets" in loc and "://" in str(first["input"])
    return f"{key} is {'an address' if is_address else shown(first['input'])}, but {rule}"


def _name_not_value(key: str, setting: str) -> str:
    example, value, word = _SECRETS[setting]
    return (
        f"{key} must be the NAME of an environment variable, such as {example}, not {value}; "
        f"run: export {example}={word}"
    )


def _bound(error: Any) -> str:
    """What a bound demands, worded as for a setting of a live run."""
    from echoscope.store.steer.steering import BOUNDS  # loads the reader of runs: only for an error

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


def _tags(first: Any) -> list[str]:
    return [tag.strip("'") for tag in first["ctx"]["expected_tags"].split(", ")]


def _quoted(key: str) -> str:
    return key if '"' in key else f"'{key}'"


def _choices(text: str) -> list[str]:
    return re.findall(r"'([^']*)'", text)


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


def _plain(loc: Sequence[str], root: Any) -> list[str]:
    return _walk(loc, root)[0]


def field_names(loc: Sequence[str], root: Any) -> list[str]:
    """Names of the settings below a path of the model `root`."""
    annotation = _walk(loc, root)[1]
    return sorted({name for model in models_in(annotation) for name in model.model_fields})


def _kinds_at(loc: Sequence[str], root: Any) -> list[str]:
    return [kind for model in models_in(_walk(loc, root)[1]) for kind in _kinds(model)]


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
