"""The plug-ins of docs/plugins.md, as printed: they pass their checks and train together."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main
import yaml
from click.testing import CliRunner
from recorded import metric

import echoscope
from echoscope.cli import app
from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents

PAGE = (Path(echoscope.__file__).resolve().parent / "docs" / "plugins.md").read_text(
    encoding="utf-8"
)
PYTHON = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
CHECKS = re.findall(r"^echoscope (plugins check [^#\n]*)", PAGE, re.MULTILINE)
ENVIRONMENTS = (Path(echoscope.__file__).resolve().parent / "docs" / "environments.md").read_text(
    "utf-8"
)
(WORLD,) = re.findall(
    r"^```python\n([^`]*^class Guess\(.*?)^```", ENVIRONMENTS, re.DOTALL | re.MULTILINE
)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_parts.py").write_text("\n\n".join(PYTHON), encoding="utf-8")
    (tmp_path / "my_module.py").write_text(WORLD, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for module in ("my_parts", "my_module"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    return tmp_path


@pytest.mark.docs
@pytest.mark.parametrize(
    "command",
    [
        *CHECKS,
        "plugins check reward my_parts:brevity",
        "plugins check observer my_parts:FirstActions",
    ],
)
def test_each_passes_its_checks(command: str, parts: Path) -> None:
    answer = CliRunner().invoke(typer.main.get_command(app), shlex.split(command))
    assert answer.exit_code == 0, answer.output
    is_table = command.startswith("plugins check environment")  # the table of `envs check`
    assert ("my_module:Guess  yes        13 passed" if is_table else ": ok (") in answer.output


@pytest.mark.docs
def test_all_of_them_train_together(
    parts: Path, make_config: Callable[..., RunConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(parts)
    (text,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
    settings = yaml.safe_load(text)
    assert settings.pop("extends") == "frozen_lake"
    overrides = [f"{key}={json.dumps(value)}" for key, value in settings.items()]
    config = make_config(
        *("steps=2", "diagnostics.enabled=false", "envs.eval=[]", "checkpoint.every=0"),
        *overrides,
        # An untrained policy never succeeds, writes short replies, and every token is unlikely.
        *("selection.params.least=0", "reward.shaping.0.params.limit=15", "loss.params.floor=0"),
    )
    assert start(config, parts / "run", SilentEvents()) == "finished"
    assert metric(parts / "run", "reward/term/brief")[1] <= 0
    assert metric(parts / "run", "custom/first_action/num_ever").keys() == {1, 2}
    assert metric(parts / "run", "optim/num_updates") == {1: 1.0, 2: 1.0}


def test_the_table_names_settings_that_exist(make_config: Callable[..., RunConfig]) -> None:
    rows = re.findall(r"^\| [a-z ]+ \| `([^`]+)` \| ", PAGE, re.MULTILINE)
    assert len(rows) == 6
    for row in rows:
        overrides = re.split(r" (?=[a-z]+\.[a-z]+=)", row)
        make_config(*overrides)
