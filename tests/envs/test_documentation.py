"""The Python of docs/environments.md works as written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import echoscope
from echoscope.envs.checks.check_env import check_env

PAGE = Path(echoscope.__file__).resolve().parent / "docs" / "environments.md"


def block_with(phrase: str) -> str:
    """The Python block of the page that holds these words."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in blocks if phrase in block)


def test_the_documented_environment_passes_its_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documented_world.py").write_text(block_with("class Guess(TaskEnv)"))
    monkeypatch.syspath_prepend(tmp_path)
    report = check_env("documented_world:Guess")
    assert report.failed == {}
    # Its first observation is the same for every task, and it has no scripted expert.
    assert set(report.skipped) == {"seeds", "expert"}
