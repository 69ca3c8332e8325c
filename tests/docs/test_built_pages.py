"""What the site builds from the code is complete: every world, metric, column and setting."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

from echoscope.cli import app
from echoscope.core.config.loading import live_fields, load_config
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


def leaves(values: Any, path: str) -> Iterator[str]:
    """Dotted paths of the values of a configuration."""
    if isinstance(values, dict) and values:
        for name, value in values.items():
            yield from leaves(value, f"{path}.{name}" if path else name)
    elif isinstance(values, list) and values and isinstance(values[0], dict):
        yield from leaves(values[0], f"{path}.0")
    else:
        yield path


@pytest.fixture(scope="module")
def settings_page(hooks: ModuleType) -> str:
    return str(hooks.on_page_markdown((ROOT / "docs" / "settings.md").read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        *([f"engine.kind={kind}"] for kind in ("vllm", "openai", "ray")),
        *([f"loss.kind={kind}"] for kind in ("gspo", "cispo")),
        ["advantage.kind=bi_level_gae", "critic.kind=head"],
        ["model.lora.rank=8", "reward.kl.coef=0.1"],
    ],
)
def test_every_setting_of_a_run_is_on_the_page(overrides: list[str], settings_page: str) -> None:
    config = load_config("bandit", overrides=overrides).model_dump(mode="json")
    rows = set(re.findall(r"^\| `([\w.]+)` \|", settings_page, re.MULTILINE))
    paths = {path.replace("envs.eval.", "envs.train.") for path in leaves(config, "")}
    own_names = ("envs.train.0.params.", "recipe.", "diagnostics.alarms.actions.")
    assert sorted(path for path in paths - rows if not path.startswith(own_names)) == []


def test_the_page_of_settings_says_which_are_live(settings_page: str) -> None:
    rows = re.findall(r"^\| `([\w.]+)` \|.* \| (yes|) \| [^|]+ \|$", settings_page, re.MULTILINE)
    assert {path for path, live in rows if live} == {*live_fields()}


def test_each_setting_has_a_meaning(settings_page: str) -> None:
    rows = [line for line in settings_page.splitlines() if line.startswith("| `")]
    assert [row for row in rows if row.endswith("|  |")] == []


def test_settings_of_the_page(settings_page: str) -> None:
    assert (
        "| `optim.lr` | number, more than 0, at most 10 | `1e-06` | yes "
        "| Learning rate of the policy. |" in settings_page
    )
    assert settings_page.count("| `loss.clip_low` |") == 3  # each kind of loss has its own default


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
