"""Hostile actions: what the list holds, and that the check finds a world which hangs on one."""

from __future__ import annotations

import time

import pytest

from echoscope.envs import registry
from echoscope.envs.base import StepResult
from echoscope.envs.checks import contract
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.checks.episodes import HOSTILE_ACTIONS, HOSTILE_S, LONG_HOSTILE_ACTIONS
from echoscope.envs.worlds.bandit import Bandit

ALL = HOSTILE_ACTIONS + LONG_HOSTILE_ACTIONS


@pytest.mark.parametrize(
    ("kind", "is_there"),
    [
        ("nothing", any(action == "" for action in ALL)),
        ("a megabyte", any(len(action) == 1_000_000 for action in ALL)),
        ("NUL", any("\x00" in action for action in ALL)),
        ("control characters", any("\x1b" in action for action in ALL)),
        ("lone surrogates", any("\ud800" in action for action in ALL)),
        ("digits of other scripts", any("\u0661" in action for action in ALL)),
        ("an integer of a million digits", any(action == "9" * 1_000_000 for action in ALL)),
        ("brackets nested a million deep", any(action == "(" * 1_000_000 for action in ALL)),
        ("code", any("__import__" in action for action in ALL)),
        ("a way out of the folder", any("../../" in action for action in ALL)),
    ],
)
def test_the_list_has_every_kind(kind: str, is_there: bool) -> None:
    assert is_there, kind
    assert len(set(ALL)) == len(ALL)
    assert HOSTILE_S == 20


class Sleeper(Bandit):
    """A bandit that thinks about long actions for too long."""

    def step(self, action: str) -> StepResult:
        if len(action) >= 1_000_000:
            time.sleep(0.5)
        return super().step(action)


class Recursive(Bandit):
    """A bandit that counts brackets by recursion."""

    def step(self, action: str) -> StepResult:
        def depth(left: str) -> int:
            return 1 + depth(left[1:]) if left[:1] == "(" else 0

        depth(action)
        return super().step(action)


@pytest.mark.parametrize(
    ("world", "sentence"),
    [
        (Sleeper, r"the action 'a+\.\.\.' of 1000000 characters took more than 0\.2 s"),
        (Recursive, "raised RecursionError"),
    ],
)
def test_a_world_that_hangs_or_recurses_is_found(
    world: type[Bandit], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(contract, "HOSTILE_S", 0.2)
    monkeypatch.setattr(contract, "CHECKS", {"hostile": contract.CHECKS["hostile"]})
    monkeypatch.setattr(registry, "env_class", lambda env_id: world)
    monkeypatch.setattr("echoscope.envs.checks.check_env.CHECKS", contract.CHECKS)
    with pytest.raises(AssertionError, match=sentence):
        raise AssertionError(check_env("test:World").failed["hostile"])
