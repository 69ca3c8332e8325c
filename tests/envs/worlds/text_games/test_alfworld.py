"""ALFWorld: its own engine over small kitchens in its own format; its data where it is there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from alfworld_data import write_games

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.registry import make
from echoscope.envs.worlds.text_games.alfworld import AlfWorld, AlfWorldConfig

MISSING = registry.lacking(AlfWorld.spec)
live = pytest.mark.skipif(bool(MISSING), reason=f"alfworld {MISSING}")


@pytest.fixture(scope="module")
def kitchens(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_games(tmp_path_factory.mktemp("alfworld")))


def test_without_the_package_one_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "_is_installed", lambda name: False)
    with pytest.raises(EnvUnavailableError, match=r"pip install -e '\.\[alfworld\]'"):
        make("alfworld")


def test_without_the_data_one_sentence_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert "ALFWORLD_DATA is not set: run alfworld-download" in AlfWorld.lacks()
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path))
    with pytest.raises(EnvUnavailableError, match="is no folder: run alfworld-download"):
        AlfWorld(AlfWorldConfig())


@pytest.mark.parametrize("types", [[], [0], [1, 7]])
def test_wrong_task_types(types: list[int]) -> None:
    with pytest.raises(EnvParamsError, match="numbers from 1 to 6"):
        AlfWorldConfig(task_types=tuple(types))


@live
def test_it_keeps_the_contract(kitchens: str) -> None:
    report = check_env("alfworld", {"data": kitchens})
    assert report.failed == {}
    assert "expert" in report.passed


@live
def test_an_episode_by_its_planner(kitchens: str) -> None:
    world = make("alfworld", data=kitchens)
    lines = world.reset(0, 0).text.splitlines()
    assert lines[0].startswith("You are in the middle of a room. Looking quickly around you")
    assert lines[1] == "Your task is to: put a mug in cabinet."
    assert lines[2].startswith("Commands: go to cabinet 1, go to countertop 1, go to drawer 1")
    assert world.solve() == [
        "go to drawer 1", "open drawer 1", "take mug 1 from drawer 1", "go to cabinet 1",
        "open cabinet 1", "move mug 1 to cabinet 1",
    ]  # fmt: skip
    world.step("Go To  countertop 1")  # a detour
    assert (world.solve() or [])[0] == "go to drawer 1"
    results, rest = [], world.solve() or []
    while rest:  # a plan that is followed loses its first command, and no other one changes
        results.append(world.step(rest[0]))
        assert world.solve() == rest[1:]
        rest = rest[1:]
    assert [result.reward for result in results] == [0, 0, 0, 0, 0, 10]
    assert [result.success for result in results] == [False] * 5 + [True]
    assert world.solve() == []


@live
def test_splits_are_folders_and_seeds_walk_through_their_sorted_games(kitchens: str) -> None:
    firsts: dict[str, Any] = {}
    for split in ("train", "eval_in_distribution", "eval_out_of_distribution"):
        world = make("alfworld", data=kitchens, split=split)
        assert world.num_tasks == 3
        firsts[split] = [world.reset(seed, 0).text for seed in range(3)]
        assert world.reset(3, 0).text == firsts[split][0]
    # Of each split the folders Mug-, Plate- and Spoon- come in this order.
    for texts in firsts.values():
        assert [f"put a {thing} in" in text for thing, text in zip(("mug", "plate", "spoon"), texts,
                strict=True)] == [True] * 3  # fmt: skip


@live
def test_a_split_without_a_game_of_these_types_is_one_sentence(kitchens: str) -> None:
    with pytest.raises(EnvUnavailableError, match="no playable game of the types \\[4\\]"):
        make("alfworld", data=kitchens, task_types=[4])


@live
def test_a_damaged_game_is_one_sentence(tmp_path: Path) -> None:
    folder = write_games(tmp_path, games=1)
    (game,) = (folder / "json_2.1.1" / "train").rglob("game.tw-pddl")
    whole = game.read_text()
    game.write_text(whole[:200])
    with pytest.raises(EnvUnavailableError, match="cannot read the games"):
        make("alfworld", data=str(folder))
    game.write_text(whole.replace("(:init", "(:nothing"))
    world = make("alfworld", data=str(folder), task_types=[1, 2])
    with pytest.raises((EnvUnavailableError, RuntimeError)):
        world.reset(0, 0)


@live
@pytest.mark.skipif(not os.environ.get("ALFWORLD_DATA"), reason="ALFWORLD_DATA is not set")
def test_the_downloaded_games_can_be_won() -> None:
    world = make("alfworld", split="eval_out_of_distribution")
    world.reset(0, 0)
    results = [world.step(command) for command in world.solve() or []]
    assert results[-1].success
