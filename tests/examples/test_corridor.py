"""The example package: it installs, its parts pass their checks, and they train together."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from recorded import metric

import echoscope
from echoscope.core.config.loading import load_config
from echoscope.core.plugins.checks import check_plugin
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.envs.checks.check_env import check_env
from echoscope.text import user_code

EXAMPLE = Path(echoscope.__file__).resolve().parent / "examples" / "corridor"
NAMES = {
    "environment": "corridor",
    "advantage": "ranks",
    "loss": "soft_clip",
    "selection": "undecided",
    "reward": "hurry",
    "observer": "directions",
}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package in a folder of its own, as pip installs it, on the path of this process."""
    folder = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation"]
    pip += ["--no-index", "--disable-pip-version-check", "--no-compile"]
    copy = tmp_path_factory.mktemp("source") / "corridor"
    shutil.copytree(EXAMPLE, copy)  # pip builds in the folder
    subprocess.run([*pip, "--target", str(folder), str(copy)], check=True)
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    user_code.entry_points.cache_clear()
    yield
    sys.path.remove(str(folder))
    user_code.entry_points.cache_clear()


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_every_part_has_a_name_and_passes_its_checks() -> None:
    assert {kind: name for kind, name in NAMES.items() if kind in user_code.GROUPS} == NAMES
    for kind, name in NAMES.items():
        assert name in user_code.entry_points(user_code.GROUPS[kind])
        if kind == "environment":
            assert dict(check_env(name).failed) == {}
        else:
            assert dict(check_plugin(kind, name).failed) == {}


@pytest.mark.long
@pytest.mark.usefixtures("installed")
def test_they_train_the_shipped_policy_together(tmp_path: Path) -> None:
    config = load_config(
        file=EXAMPLE / "recipe.yaml",
        overrides=[
            *("steps=3", "threads=1", "diagnostics.enabled=false", "probe.every=0"),
            *("envs.train.0.groups=2", "envs.train.0.max_turns=2", "eval.before=false"),
            *("envs.eval.0.groups=2", "envs.eval.0.max_turns=2"),
        ],
    )
    assert start(config, tmp_path / "run", SilentEvents()) == "finished"
    assert metric(tmp_path / "run", "custom/left/share").keys() == {1, 2, 3}
    assert sum(metric(tmp_path / "run", "optim/num_updates").values()) >= 1
    assert metric(tmp_path / "run", "reward/term/hurry").keys() == {1, 2, 3}
    successes = metric(tmp_path / "run", "eval/corridor/success_rate", phase="eval")
    assert successes.keys() == {3}
