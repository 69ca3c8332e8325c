"""What the site builds from the code is complete: every world, every metric, every column."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.diagnostics.catalogue import METRICS
from echoscope.diagnostics.judge.alarms import ALL_RULES
from echoscope.envs import registry
from echoscope.envs.checks.contract import HEADINGS
from echoscope.envs.checks.description import described
from echoscope.store.schema import TABLES

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    pytest.importorskip("mkdocs")
    spec = importlib.util.spec_from_file_location("docs_hooks", ROOT / "docs" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("env_id", registry.BUILTIN)
def test_a_world_is_described_whole(env_id: str) -> None:
    text = described(env_id)
    assert text.startswith(f"## {env_id}\n")
    missing = [name for name in HEADINGS[:-1] if f"\n**{name.removesuffix(':')}.** " not in text]
    assert missing == []
    fields = registry.spec(env_id).config_type.__dataclass_fields__
    assert re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE) == list(fields)
    if env_id not in registry.unavailable() and env_id not in ("remote", "gymnasium"):
        assert "Example, played by" in text


def test_the_command_prints_the_section_of_the_page() -> None:
    answer = CliRunner().invoke(app, ["envs", "show", "bandit"])
    assert answer.exit_code == 0
    assert answer.output.strip() == described("bandit").strip()


def test_the_page_of_worlds_has_every_world_once(
    hooks: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks, "described", lambda env_id: f"## {env_id}\n")
    titles = [line[3:] for line in hooks.worlds_page().splitlines() if line.startswith("## ")]
    assert titles == list(registry.BUILTIN)


def test_every_metric_is_in_the_tables(hooks: ModuleType) -> None:
    page = (ROOT / "docs" / "metrics-guide.md").read_text(encoding="utf-8")
    built = hooks.on_page_markdown(page)
    assert [entry.key for entry in METRICS if f"`{entry.key}`" not in built] == []
    assert hooks.metric_tables().count("### ") == len(hooks.FIRST_OF)


def test_every_column_is_in_the_reference(hooks: ModuleType) -> None:
    built = hooks.on_page_markdown((ROOT / "docs" / "store.md").read_text(encoding="utf-8"))
    for table in TABLES.values():
        section = built.split(f"\n### {table.name}\n")[1].split("\n### ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.M) == [c.name for c in table.columns]


def test_rules_reading(hooks: ModuleType) -> None:
    rules_reading = hooks.rules_reading
    assert rules_reading("rollout/action_valid_frac")[0] == "FORMAT_COLLAPSE"
    assert "TEMPLATE_COLLAPSE" in rules_reading("info/first_turn/mutual_information")
    assert rules_reading("optim/lr") == []
    read = {name for entry in METRICS for name in rules_reading(entry.key)}
    assert read == {rule.name for rule in ALL_RULES}


def test_families_are_one_entry_of_a_table(hooks: ModuleType) -> None:
    keys = ["info/first_turn/x", "info/all_turns/x", "text/y"]
    assert hooks.in_table(keys) == "`info/FAMILY/x`, `text/y`"
