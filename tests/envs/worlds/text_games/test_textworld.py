"""TextWorld's own engine: generated games, their commands, and what a policy cannot do to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.checks.episodes import digest
from echoscope.envs.pool import EnvPool
from echoscope.envs.registry import make
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.text_games.engine_process import (
    GameEngine,
    GameEngineError,
    GameSession,
    shared_engine,
)
from echoscope.envs.worlds.text_games.textworld import TextWorld, TextWorldConfig

MISSING = registry.lacking(TextWorld.spec)
live = pytest.mark.skipif(bool(MISSING), reason=f"textworld {MISSING}")
SMALL: dict[str, Any] = {"games": 4, "quest_length": 3}


@pytest.fixture(autouse=True, scope="module")
def _one_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Games are made once for all tests of this file, and in this process's child too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ECHOSCOPE_CACHE", str(tmp_path_factory.mktemp("games")))
        shared_engine().close()
        yield
        shared_engine().close()


def test_without_the_package_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_is_installed", lambda name: False)
    with pytest.raises(EnvUnavailableError, match=r"pip install -e '\.\[textworld\]'"):
        make("textworld")


@pytest.mark.parametrize(
    ("name", "value"),
    [("rooms", 0), ("objects", 41), ("quests", 6), ("quest_length", 21), ("games", 0)],
)
def test_wrong_parameters(name: str, value: int) -> None:
    with pytest.raises(EnvParamsError, match=f"{name} is {value}, but must be at least"):
        TextWorldConfig(**{name: value})


@live
def test_it_keeps_the_contract() -> None:
    report = check_env("textworld", SMALL)
    assert report.failed == {}
    assert "expert" in report.passed


@live
def test_a_game_is_the_same_in_two_processes_with_two_hash_seeds(tmp_path: Path) -> None:
    code = (
        "from echoscope.envs.checks.episodes import digest; "
        "from echoscope.envs.registry import make; "
        f"print(digest(make('textworld', **{SMALL!r})))"
    )
    # Caches of their own: both make the games anew.
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONHASHSEED": seed, "ECHOSCOPE_CACHE": str(tmp_path / seed)},
        )
        for seed in ("0", "1")
    ]
    here = digest(make("textworld", **SMALL))
    for child in children:
        assert child.communicate(timeout=120)[0].strip() == here


@live
def test_the_expert_wins_with_the_length_of_the_quest_and_scores_its_points() -> None:
    for params in (SMALL, {"games": 3, "quests": 2, "rooms": 5, "objects": 8}):
        world = make("textworld", **params)
        for seed in range(3):
            world.reset(seed, 0)
            plan = world.solve() or []
            results = [world.step(command) for command in plan]
            assert len(plan) <= TextWorld.spec.max_turns
            assert [result.terminated for result in results].index(True) == len(plan) - 1
            assert results[-1].success
            assert sum(result.reward for result in results) == params.get("quests", 1)
            assert "*** The End ***" in results[-1].observation.text
            assert "RESTART" not in results[-1].observation.text


@live
def test_nothing_but_the_games_own_commands_reaches_the_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    world = make("textworld", **SMALL)
    first = world.reset(0, 0).text
    hostile = [
        "quit", "restart", "save", "restore", "undo", "script", "transcript on", "tw-trace-actions",
        "purloin all", "xyzzy", "look. look", "look then save", "look\nsave\nx\n", "take all",
        "look\x00", "a" * 1_000_000, "look " * 100_000, "\x1b[2J", "tw-extra-infos score",
        "../../x", "save /tmp/x", "\ud800", "{0}", "%n", ">look",
    ]  # fmt: skip
    for action in hostile:
        result = world.step(action)
        assert (result.is_valid, result.is_effective, result.reward) == (False, False, 0.0), action
        assert result.observation.text == f"{world.invalid_notice(action)}\n{first}"
    assert world.step("LOOK ").is_valid
    assert list(tmp_path.iterdir()) == []


@live
def test_short_forms_stand_for_a_listed_command() -> None:
    world = make("textworld", **SMALL)
    world.reset(0, 0)
    assert "look" in world.step("l").observation.text.casefold() or world.step("l").is_valid
    assert "You are carrying" in world.step("i").observation.text
    thing = next(name for name in world.legal_actions() if name.startswith("examine "))
    assert world.step(f"x {thing.removeprefix('examine ')}").is_valid
    assert "go nowhere" not in world.legal_actions()
    assert not world.step("nowhere").is_valid


@live
def test_commands_may_be_hidden_and_the_goal_repeated() -> None:
    world = make("textworld", **SMALL, show_commands=False, repeat_goal=True)
    assert "Commands:" not in world.reset(0, 0).text
    assert world.legal_actions() == ()
    assert "unlock door with key" in world.instructions()
    text = world.step("inventory").observation.text
    assert text.splitlines()[1].startswith("Goal: ")


@live
def test_other_numbers_are_other_games() -> None:
    keys = []
    for first in (0, 4):
        world = make("textworld", **SMALL, first_game=first)
        for seed in range(8):
            world.reset(seed, 0)
            keys.append(world.task_key())
    assert len(set(keys)) == 8
    assert not set(keys[:8]) & set(keys[8:])
    assert keys[:4] == keys[4:8]


@live
def test_the_death_of_the_engine_costs_one_episode_of_the_pool() -> None:
    group = EnvGroup(env="textworld", params=SMALL, groups=2, max_turns=6, max_actions_per_turn=1)
    with EnvPool([group], group_size=1, seed=0, split="train") as pool:
        assert len(begin(pool, 0)) == 2
        process = shared_engine()._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)  # it hangs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GameSession._ask, "__kwdefaults__", {"timeout_s": 1.0})
            results = {slot: pool.step_one(slot, ["look"], True) for slot in (0, 1)}
        assert "took longer than 1 seconds" in (results[0].error or "")
        assert results[0].stop_reason == "env_error"
        assert not results[1].error
        assert results[1].stop_reason is None
        assert len(begin(pool, 1)) == 2


def test_a_game_that_cannot_be_made_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_is_installed", lambda name: True)
    monkeypatch.setattr(GameEngine, "ask", refuse)
    world = make("textworld")
    with pytest.raises(EnvUnavailableError, match="textworld cannot make a game: no quest of 4"):
        world.reset(0, 0)


def refuse(*_: object, **__: object) -> None:
    raise GameEngineError("no quest of 4 commands")
