"""Every world that is installed trains end to end: play, learn, write down."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from listening import Listener

from echoscope.core.config.settings import RunConfig
from echoscope.core.run.launch import start
from echoscope.envs import registry
from echoscope.store.reader import open_run

PARAMS = {
    "gymnasium": {"env": "FrozenLake-v1"},
    "webshop": {"page_size": 2},
    "textworld": {"rooms": 1, "objects": 1, "quest_length": 1, "show_commands": False},
}
"""Where a world has parameters without a default, or long observations."""
INSTALLED = [env_id for env_id in registry.known_ids() if env_id not in registry.unavailable()]


@pytest.mark.long
@pytest.mark.parametrize("env_id", INSTALLED)
def test_three_steps(env_id: str, make_config: Callable[..., RunConfig], tmp_path: Path) -> None:
    group = {
        "env": env_id,
        "groups": 2,
        "max_turns": 2,
        "max_actions_per_turn": 1,
        "params": PARAMS.get(env_id, {}),
    }
    config = make_config(
        "steps=3",
        "diagnostics.enabled=false",
        "checkpoint.every=0",
        "eval.every=0",
        "context.max_prompt_tokens=1500",
        f"envs.train={yaml.safe_dump([group], default_flow_style=True, width=10_000).strip()}",
        "envs.eval=[]",
    )
    assert start(config, tmp_path / "run", Listener()) == "finished"
    played = open_run(tmp_path / "run").sql(
        "SELECT env_id, count(*) AS n, count(DISTINCT step) AS steps FROM trajectories "
        "WHERE stop_reason NOT IN ('env_error', 'prompt_too_long') GROUP BY env_id"
    )
    assert played.to_pylist() == [{"env_id": env_id, "n": 24, "steps": 3}]
