"""From recipe names, YAML files and `key=value` words to a checked RunConfig."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from echoscope.diagnostics.config import DiagnosticsConfig
from echoscope.diagnostics.tools.setting_errors import (
    SettingError,
    checked,
    describe,
    models_in,
    shown,
    step,
)
from echoscope.text.did_you_mean import did_you_mean
from echoscope.text.yaml_text import MAX_DEPTH, YamlError, parse_yaml, read_yaml_file

from .beside_training import RecipeOrigin
from .inert import inert_rules, may_hold
from .settings import RunConfig

RECIPES = Path(__file__).parent / "recipes"


class ConfigError(ValueError):
    """A setting is wrong; the message names the value, the rule and the way out."""


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def recipe_description(name: str) -> str:
    """The first comment line of a recipe."""
    first = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip()


def load_config(
    recipe: str | None = None,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> RunConfig:
    """A checked configuration from a recipe or file, with `key=value` words applied on top.

    Raises:
        ConfigError: unknown recipe, unreadable file, unknown key, wrong type or range.
    """
    config = validate(_values(recipe, file, overrides))
    name = (None if file is None else _extended(_read_settings(file))) or recipe
    origin = _origin(config, name)
    return config if origin is None else config.model_copy(update={"recipe": origin})


_NOT_TRAINING = (
    "name",
    "seed",
    "steps",
    "threads",
    "recipe",
    "eval",
    "probe",
    "checkpoint",
    "diagnostics",
    "sinks",
    "observers",
)
"""Settings that change what is measured and kept, not what is learned in a step."""


def _origin(config: RunConfig, name: str | None) -> RecipeOrigin | None:
    """The nearest of the recipes that a configuration extends from which it differs."""
    own = config.model_dump(mode="json")
    while name is not None:
        base = validate(merge(_defaults(), _read_recipe(name))).model_dump(mode="json")
        parts = [key for key in own if key not in _NOT_TRAINING]
        differences = [d for key in parts for d in _differences(base[key], own[key], key)]
        if differences:
            return RecipeOrigin(name=name, values=dict(differences))
        name = _extended(_read_settings(RECIPES / f"{name}.yaml"))
    return None


def _differences(base: Any, own: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted key and value in `base` of what both have and is not the same."""
    if isinstance(base, list) and isinstance(own, list) and len(base) == len(own):
        base, own = dict(enumerate(base)), dict(enumerate(own))
    if isinstance(base, dict) and isinstance(own, dict):
        for key in base:
            if key in own and f"{prefix}.{key}" != "envs.eval":
                yield from _differences(base[key], own[key], f"{prefix}.{key}")
    elif base != own and (not base or not isinstance(base, dict | list)):
        yield prefix, base  # what is typed in a word; other tasks are another run


def load_diagnostics(
    recipe: str | None = None,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
) -> tuple[str, DiagnosticsConfig]:
    """Name of a configuration, and its section `diagnostics`.

    A configuration without environments trains nothing, so only its section
    `diagnostics` is checked.

    Raises:
        ConfigError: as `load_config`.
    """
    values = _values(recipe, file, overrides)
    if "envs" in values:
        config = validate(values)
        return config.name, config.diagnostics
    for key in values:
        if key not in RunConfig.model_fields:
            raise ConfigError(f"unknown key {key!r}{did_you_mean(key, RunConfig.model_fields)}")
    try:
        diagnostics = checked(DiagnosticsConfig, values["diagnostics"], ("diagnostics",))
    except SettingError as error:
        raise ConfigError(str(error)) from None
    return str(values["name"]), diagnostics


def _values(recipe: str | None, file: Path | None, overrides: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if recipe is not None:
        values = merge(values, _read_recipe(recipe))
    if file is not None:
        values = merge(values, _read_yaml(file))
    return _overridden(merge(_defaults(), values), overrides)


def override(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """The configuration with `key=value` words applied on top, live settings or not.

    Raises:
        ConfigError: not KEY=VALUE, unknown key, wrong type or range.
    """
    return validate(_overridden(config.model_dump(), overrides))


def _overridden(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    out = dict(values)
    for word in overrides:
        key, value = parse_override(word)
        out = merge(out, _nested(key, value))
    return out


def _defaults() -> dict[str, Any]:
    """Defaults of everything that has one, so that an override finds the `kind` it refines.

    Sinks are left out: which of them somebody names says which are on.
    """
    out: dict[str, Any] = {}
    for name, info in RunConfig.model_fields.items():
        if not info.is_required() and name != "sinks":
            value = info.get_default(call_default_factory=True)
            out[name] = value.model_dump() if isinstance(value, BaseModel) else value
    return out


def _read_recipe(name: str) -> dict[str, Any]:
    path = RECIPES / f"{name}.yaml"
    if name not in recipe_names():
        raise ConfigError(
            f"unknown recipe {name!r}{did_you_mean(name, recipe_names())} "
            "(a file of your own goes with --config FILE.yaml)"
        )
    return _read_yaml(path)


def _read_yaml(path: Path) -> dict[str, Any]:
    """The settings of a file on top of those of the recipe that it extends."""
    settings = _read_settings(path)
    parent = _extended(settings)
    settings.pop("extends", None)
    return settings if parent is None else merge(_read_recipe(parent), settings)


def _extended(settings: Mapping[str, Any]) -> str | None:
    """The recipe that a file names."""
    parent = settings.get("extends")
    return None if parent is None else str(parent)


def _read_settings(path: Path) -> dict[str, Any]:
    """What a file itself says.

    Raises:
        ConfigError: it cannot be read, or holds no mapping.
    """
    try:
        values = read_yaml_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except YamlError as error:
        raise ConfigError(f"{path} {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds a {type(values).__name__}, but must hold a mapping")
    return dict(values)


def parse_override(word: str) -> tuple[str, Any]:
    """`"optim.lr=1e-4"` as a dotted key and a YAML value.

    Raises:
        ConfigError: no `=`, an empty key, or a value that is not YAML.
    """
    if not word.isprintable() and any("\ud800" <= char <= "\udfff" for char in word):
        raise ConfigError(f"{shown(word)} is not valid UTF-8")
    key, equals, text = word.partition("=")
    key = key.strip()
    parts = key.split(".")
    if not equals or not key or not all(parts):
        raise ConfigError(f"{shown(word)} is not KEY=VALUE; write for example optim.lr=1e-4")
    if len(parts) > MAX_DEPTH:
        raise ConfigError(f"{shown(key)} has {len(parts)} parts, more than {MAX_DEPTH}")
    try:
        return key, parse_yaml(text)
    except YamlError as error:
        if str(error).startswith("is not valid YAML"):
            raise ConfigError(f"the value in {shown(word)} is not valid YAML; quote it") from None
        raise ConfigError(f"the value in {shown(word)} {error}") from None


def _nested(key: str, value: Any) -> dict[str, Any]:
    out: Any = value
    for part in reversed(key.split(".")):
        out = {part: out}
    return dict(out)


def merge(base: Mapping[str, Any], over: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`over` on top of `base`, mappings merged; numeric keys address items of a list.

    A mapping that names another `kind` replaces the one below it: the other kind's settings do
    not carry over. An empty mapping clears one whose names are free, such as the actions of alarms.
    `at` is the dotted path of both.
    """
    out = dict(base)
    for key, value in over.items():
        below = out.get(key)
        if value == {} and isinstance(below, Mapping) and _is_free(f"{prefix}{key}"):
            out[key] = {}
        elif isinstance(value, Mapping) and isinstance(below, Mapping):
            other_kind = "kind" in value and value["kind"] != below.get("kind")
            out[key] = dict(value) if other_kind else merge(below, value, f"{prefix}{key}.")
        elif isinstance(value, Mapping) and isinstance(below, list):
            out[key] = _merge_list(f"{prefix}{key}", below, value)
        else:
            out[key] = value
    return out


def _is_free(path: str) -> bool:
    """Whether the setting at a dotted path is a mapping with names of the user's own."""
    annotation: Any = RunConfig
    for part in path.split("."):
        if get_origin(annotation) is list and part.isdigit():
            annotation = get_args(annotation)[0]
        elif get_origin(annotation) is not dict:
            annotation = step(models_in(annotation), annotation, part)
    return get_origin(annotation) is dict


def _merge_list(key: str, below: list[Any], value: Mapping[str, Any]) -> list[Any]:
    items = list(below)
    for index, item in value.items():
        if not str(index).isdigit() or int(index) >= len(items):
            raise ConfigError(
                f"{key}.{index}: {key} is a list of {len(items)}; use {key}.0 and so on"
            )
        old = items[int(index)]
        both = isinstance(item, Mapping) and isinstance(old, Mapping)
        items[int(index)] = merge(old, item, f"{key}.{index}.") if both else item
    return items


def validate(values: Mapping[str, Any]) -> RunConfig:
    """Check a nested mapping.

    Raises:
        ConfigError: names the first offending key, its value and the rule.
    """
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(describe(error, RunConfig)) from None


@cache
def live_fields() -> Mapping[str, FieldInfo]:
    """Dotted key to field of every setting that may change while a run is going."""
    return MappingProxyType(_live_fields_of(RunConfig, ""))


def _live_fields_of(annotation: Any, prefix: str) -> dict[str, FieldInfo]:
    out: dict[str, FieldInfo] = {}
    for model in models_in(annotation):
        for name, info in model.model_fields.items():
            extra = info.json_schema_extra
            if isinstance(extra, dict) and extra.get("live"):
                out[f"{prefix}{name}"] = info
            else:
                out |= _live_fields_of(info.annotation, f"{prefix}{name}.")
    return out


@cache
def _schema_of(key: str) -> Mapping[str, Any]:
    """JSON Schema of a live setting: the same for every run, and slow to make."""
    info = live_fields()[key]
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[info.annotation, info])  # type: ignore[arg-type]
    schema = adapter.json_schema()
    return {name: value for name, value in schema.items() if name not in ("live", "default")}


def live_schema(config: RunConfig) -> dict[str, Any]:
    """JSON Schema of each live setting with its present value: what a form is built from.

    `inert` of a setting says with which others it has no effect.
    """
    out: dict[str, Any] = {}
    values, live = config.model_dump(mode="json"), live_fields()

    def fixed(name: str) -> tuple[bool, Any]:
        value = _value_in(values, name)
        return name not in live, None if value is _MISSING else value

    for key, value in live_values(config).items():  # without settings of other kinds of losses
        out[key] = {**deepcopy(dict(_schema_of(key))), "value": value}
        if rules := [rule for rule in inert_rules(key) if may_hold(rule, fixed)]:
            out[key]["inert"] = rules
    if not config.selection.function:  # a rule of one's own must be there from the start
        out["selection.strategy"]["enum"].remove("custom")
    if not config.has_choice_of_tags:
        out["curriculum.by"]["enum"].remove("success")
    return out


def live_values(config: RunConfig) -> dict[str, Any]:
    """The live settings of a configuration by dotted key, as JSON values."""
    values: dict[str, Any] = config.model_dump(mode="json")
    live = {key: _value_in(values, key) for key in live_fields()}
    return {key: value for key, value in live.items() if value is not _MISSING}


_MISSING = object()


def _value_in(values: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return _MISSING
        values = values[part]
    return values


def placed(config: RunConfig, settings: Mapping[str, Any]) -> tuple[RunConfig, dict[str, Any]]:
    """A configuration with the settings of where it runs, and those that remain.

    A run may go on with another number of ranks, and with another engine: where these sample from
    the same weights, what it learns depends on them by rounding alone.
    """
    values, rest = config.model_dump(), {}
    for key, value in settings.items():
        if key.partition(".")[0] in ("engine", "trainer"):
            values = merge(values, _nested(key, value))
        else:
            rest[key] = value
    return validate(values), rest


def apply_settings(config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
    """The configuration with live settings changed: all of them, or none.

    Raises:
        ConfigError: an unknown key, a key that is not live, or a value out of range.
    """
    if not settings:
        raise ConfigError("nothing to set; write for example selection.value=0.5")
    live = live_fields()
    values: dict[str, Any] = config.model_dump()
    for key, value in settings.items():
        if key not in live:
            if _value_in(config.model_dump(mode="json"), key) is _MISSING:
                raise ConfigError(f"unknown key {key!r}{did_you_mean(key, live)}")
            names = ", ".join(sorted(live))
            raise ConfigError(f"{key} cannot change while the run is going; live settings: {names}")
        values = merge(values, _nested(key, value))
    return validate(values)
