"""The Python of docs/environments.md works as written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from echoscope.envs.data.prompts import draw_prompts

import echoscope
from echoscope.envs import registry
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.settings import EnvGroup

PAGE = Path(echoscope.__file__).resolve().parent / "docs" / "environments.md"


def block_with(words: str) -> str:
    """The Python block of the page that holds these words."""
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return next(block for block in found if words in block)


def test_the_reward_function_for_trl_pays_what_the_world_pays() -> None:
    """Called with the columns of an exported file as lists, and text or messages to judge."""
    names: dict[str, Any] = {}
    exec(compile(block_with("def world_reward"), PAGE.name, "exec"), names)
    group = EnvGroup(env="countdown", groups=1, max_turns=1)
    rows = [prompt.row() for prompt in draw_prompts(group, 5, split="train")]
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    world = registry.make("countdown")
    world.reset(rows[0]["env_seed"], rows[0]["noise_seed"])
    (right,) = world.solve() or ()
    solved = f"<think>So.</think><answer>{right}</answer>"
    texts = [solved, "no answer", f"<answer>1 || {right}</answer>", "<answer></answer>", "<answer>"]
    assert names["world_reward"](texts, **columns) == [1.0, 0.0, 0.0, 0.0, 0.0]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert names["world_reward"](chats, **columns) == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_the_documented_environment_passes_its_checker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "documented_world.py").write_text(block_with("class Guess(TextEnv)"))
    monkeypatch.syspath_prepend(tmp_path)
    report = check_env("documented_world:Guess")
    assert report.failed == {}
    # Its first observation is the same for every task, and it has no scripted expert.
    assert set(report.skipped) == {"seeds", "expert"}
