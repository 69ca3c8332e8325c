"""YAML documents as plain values: no tags, no aliases, bounded in size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import yaml

MAX_YAML_LINES = 200_000
_LINE = re.compile(
    r"\s*(?:- )*(?:[\w\"'][\w\"' /.@()%+-]*:(?: .*)?|-(?: \S.*)?)|\s*-|---.*|\.\.\.|\s*#.*"
)
_NESTED = re.compile(r"\s*(?:- .*|-|[\w\"'][^:]*:)")


def looks_like_yaml(lines: Sequence[str]) -> bool:
    """Is every line one of a mapping or a list, and one of them the beginning of a group?"""
    filled = [line for line in lines if line.strip()]
    is_nested = any(_NESTED.fullmatch(line.rstrip()) for line in filled)
    return len(filled) > 2 and is_nested and all(_LINE.fullmatch(line.rstrip()) for line in filled)


def yaml_documents(text: str) -> list[Any]:
    """The values of the documents in a text; empty where it is no YAML."""
    try:
        # A few bytes of aliases stand for gigabytes.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, yaml.CSafeLoader)):
            return []
        return list(yaml.load_all(text, Loader=yaml.CSafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []
