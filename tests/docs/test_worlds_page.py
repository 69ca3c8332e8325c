"""The page of all worlds is what its generator writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from echoscope.envs import registry

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "worlds.md"


def generator() -> ModuleType:
    script = ROOT / "benchmarks" / "world_pages.py"
    spec = importlib.util.spec_from_file_location("world_pages", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("env_id", registry.BUILTIN)
def test_the_section_of_a_world_is_up_to_date(env_id: str) -> None:
    """`python benchmarks/world_pages.py` writes it; a world that cannot run keeps its episode."""
    page = PAGE.read_text(encoding="utf-8")
    assert generator().section(env_id, page) in page


def test_the_page_has_every_world_once_and_nothing_else() -> None:
    titles = [line[3:] for line in PAGE.read_text().splitlines() if line.startswith("## ")]
    assert titles == list(registry.BUILTIN)
    assert PAGE.read_text(encoding="utf-8").startswith(generator().HEAD)
