"""Players who do not do the task earn little of what the expert earns, in every made world."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from echoscope.envs import registry
from echoscope.envs.checks.players import has_expert
from echoscope.envs.settings import EnvGroup

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from cheats import cheats_of, play

TASKS = 30
SHARE = 0.8


@pytest.mark.long
@pytest.mark.parametrize("env_id", registry.BUILTIN)
def test_no_cheat_earns_80_percent_of_the_expert(env_id: str) -> None:
    if env_id in (missing := registry.unavailable()):
        pytest.skip(missing[env_id])
    if not has_expert(EnvGroup(env=env_id)):
        pytest.skip("there is no scripted expert")
    expert = play(env_id, None, TASKS)
    assert expert.mean_return > 0
    for name, cheat in cheats_of(env_id).items():
        outcome = play(env_id, cheat, TASKS)
        assert outcome.mean_return <= SHARE * expert.mean_return, name
        assert (outcome.success or 0.0) <= (expert.success or 0.0), name
