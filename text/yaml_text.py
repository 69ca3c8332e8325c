"""YAML 1.2 from a stranger: numbers and booleans by its core schema, bounded in size and depth.

PyYAML reads YAML 1.1, where `yes` is true, `1:30` is ninety and `1e-4` is text.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import yaml

MAX_BYTES = 262_144
MAX_DEPTH = 32
MAX_NODES = 20_000
"""Values, each alias counted as often as it is used: a few lines of aliases make billions."""
MAX_DIGITS = 400


class YamlError(ValueError):
    """The text is not YAML, or too large: the rest of a sentence about it, one line."""


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2 (section 10.3.2): everything else is text."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own way


for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+0123456789.",
    ),
):
    _Loader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), [*_first, ""]
    )


def _int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    if len(text) > MAX_DIGITS:
        raise YamlError(f"holds a number of {len(text)} digits, more than {MAX_DIGITS}")
    return int(text[2:], {"0o": 8, "0x": 16}[text[:2]]) if text[:2] in ("0o", "0x") else int(text)


def _float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    text = node.value.lower()
    return float(text.replace(".inf", "inf").replace(".nan", "nan"))


def _mapping(loader: yaml.SafeLoader, node: yaml.MappingNode) -> dict[Any, Any]:
    names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise YamlError(f"gives {short(name)!r} twice; leave out one")
        seen.add(name)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:int", _int)
_Loader.add_constructor("tag:yaml.org,2002:float", _float)
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def parse_yaml(text: str) -> Any:
    """The value of a YAML document.

    Raises:
        YamlError: not YAML, too deep, or too large.
    """
    if len(text) > MAX_BYTES:
        raise YamlError(f"has {len(text)} characters, more than {MAX_BYTES}")
    try:
        value = yaml.load(text, Loader=_Loader)
        _check_size(value)
    except yaml.YAMLError as error:
        raise YamlError(f"is not valid YAML: {short(' '.join(str(error).split()), 300)}") from None
    except YamlError:
        raise
    except (ValueError, TypeError, RecursionError) as error:  # a broken !!tag
        raise YamlError(f"is not valid YAML: {short(str(error))}") from None
    return value


def _check_size(value: Any) -> None:
    """Refuse what is nested too deeply or has too many values."""
    waiting, total = [(value, 0)], 0
    while waiting:
        entry, depth = waiting.pop()
        total += 1
        if depth > MAX_DEPTH:
            raise YamlError(f"is nested more than {MAX_DEPTH} deep")
        if total > MAX_NODES:
            raise YamlError(f"has more than {MAX_NODES} values")
        inner = entry.values() if isinstance(entry, dict) else entry
        if isinstance(entry, dict | list):
            waiting += [(part, depth + 1) for part in inner]


def read_yaml_file(path: Path) -> Any:
    """The value in a file.

    Raises:
        YamlError: not YAML, too large, or not a regular file.
        OSError: it cannot be read.
    """
    # Never waiting for a pipe, never reading a device that does not end.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise YamlError("is not a regular file")
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise YamlError(f"has more than {MAX_BYTES} bytes")
    try:
        return parse_yaml(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise YamlError(f"is not valid YAML: not UTF-8 at byte {error.start}") from None


def short(text: str | None, most: int = 80) -> str:
    """The text, cut so that a message stays one line."""
    text = text or ""
    return text if len(text) <= most else f"{text[:most]}..."
