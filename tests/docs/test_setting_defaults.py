"""Tables of settings with a column "default" say what the settings say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from echoscope.core.config.engine import (
    RayEngineConfig,
    VllmEngineConfig,
)
from echoscope.core.config.settings import RunConfig

DOCS = Path(__file__).parents[2] / "docs"
HEAD = re.compile(r"^\| setting \| default \| meaning \|$", re.MULTILINE)
EMPTY = "empty"

ENGINES: dict[str, tuple[type[BaseModel], ...]] = {
    "engines.md": (VllmEngineConfig,),
    "ray.md": (RayEngineConfig,),
}
"""Whose settings `engine.` means on a page."""


def rows(page: Path) -> Iterator[tuple[str, str]]:
    """Each row's names and defaults, as they are written."""
    text = page.read_text(encoding="utf-8")
    for head in HEAD.finditer(text):
        for line in text[head.end() :].lstrip("\n").splitlines()[1:]:
            if not line.startswith("|"):
                break
            names, default, _ = (cell.strip() for cell in line.strip("|").split(" | ", 2))
            yield names, default


def full_names(names: str) -> list[str]:
    """``a.b`, `c`` is a.b and a.c."""
    first, *others = (name.strip("` ") for name in names.split(","))
    section = first.rpartition(".")[0]
    return [first, *(f"{section}.{name}" for name in others)]


def defaults_of(name: str, page: str) -> list[Any]:
    """The default of a setting, for each engine that has it."""
    *sections, field = name.split(".")
    if sections == ["engine"]:
        models = [model for model in ENGINES[page] if field in model.model_fields]
    else:
        models = [RunConfig]
        for section in sections:
            models = [models[0].model_fields[section].annotation]
    return [model.model_fields[field].get_default(call_default_factory=True) for model in models]


def read(default: str) -> Any:
    return yaml.safe_load(default.strip("`"))


TABLES = [(page.name, *row) for page in sorted(DOCS.glob("*.md")) for row in rows(page)]


def test_there_are_tables_of_every_page_with_engines() -> None:
    assert {"collection.md", "engines.md", "monitor.md", "ray.md"} <= {page for page, *_ in TABLES}


@pytest.mark.parametrize(("page", "names", "default"), TABLES)
def test_a_default_on_a_page_is_the_setting_s(page: str, names: str, default: str) -> None:
    settings = full_names(names)
    defaults = [default] if len(settings) == 1 else default.split(", ")
    assert len(defaults) == len(settings)
    for setting, word in zip(settings, defaults, strict=True):
        values = defaults_of(setting, page)
        assert values
        for value in values:
            if word == EMPTY:
                assert not value
            elif isinstance(value, BaseModel):
                assert type(value).model_validate(read(word)) == value
            else:
                assert value == read(word)
