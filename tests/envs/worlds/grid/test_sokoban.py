"""Sokoban: rules and expert by hand, the generator against an independent search."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.worlds.grid.geometry import MOVES, shift
from echoscope.envs.worlds.grid.sokoban import (
    Sokoban,
    SokobanConfig,
    draw_level,
    parse_level,
)
from echoscope.envs.worlds.grid.sokoban_search import is_deadlocked, solve, states_by_distance

PUSH_RIGHT = ["######", "#@$ .#", "######"]
ROOM = ["######", "#.   #", "#    #", "#$   #", "# @  #", "######"]
"""The board in the reference system's documentation (seed 10000): solved by left, up, up."""


def world(tmp_path: Path, rows: list[str], **config: Any) -> Sokoban:
    path = tmp_path / "level.xsb"
    path.write_text("\n".join(rows))
    env = Sokoban(SokobanConfig(levels=str(path), **config))
    env.reset(0, 0)
    return env


def test_a_solution_pays_moves_box_and_all(tmp_path: Path) -> None:
    env = world(tmp_path, PUSH_RIGHT)
    assert env.solve() == ["right", "right"]
    first = env.step("right")
    assert (first.reward, first.terminated, first.success) == (-0.1, False, False)
    last = env.step("right")
    assert last.reward == pytest.approx(-0.1 + 1 + 10)
    assert (last.terminated, last.success) == (True, True)
    after = env.step("left")
    assert (after.is_valid, after.reward, after.terminated) == (False, 0.0, True)


def test_a_three_move_solution_returns_10_7(tmp_path: Path) -> None:
    env = world(tmp_path, ROOM)
    plan = env.solve()
    assert plan == ["left", "up", "up"]
    assert sum(env.step(move).reward for move in plan) == pytest.approx(10.7)


def test_a_box_that_leaves_its_target_costs_one(tmp_path: Path) -> None:
    env = world(tmp_path, ["########", "#@*$ . #", "########"])
    assert env.step("right").reward == pytest.approx(-0.1)  # two boxes in a row do not move
    env = world(tmp_path, ["########", "#@* $ .#", "########"])
    assert env.step("right").reward == pytest.approx(-1.1)


def test_a_blocked_move_is_valid_and_has_no_effect(tmp_path: Path) -> None:
    env = world(tmp_path, PUSH_RIGHT)
    for move in ("up", "left", "down"):
        result = env.step(move)
        assert (result.is_valid, result.is_effective, result.reward) == (True, False, -0.1)


def test_observation_formats(tmp_path: Path) -> None:
    texts = {
        form: world(tmp_path, ROOM, observation=form).reset(0, 0).text
        for form in ("grid", "coord", "both", "relative")
    }
    assert texts["grid"] == "######\n#O___#\n#____#\n#X___#\n#_P__#\n######"
    assert texts["coord"] == (
        "Board 6x6. Player (4, 2). Boxes (3, 1). Targets (1, 1). Inner walls none."
    )
    assert texts["both"] == f"{texts['coord']}\n{texts['grid']}"
    assert texts["relative"] == (
        "Box 1 up 1 left. Target 2 up of box. "
        "Near: up floor, down wall, left floor, right floor. Push: none."
    )


def test_the_relative_format_says_pushes_and_home(tmp_path: Path) -> None:
    env = world(tmp_path, PUSH_RIGHT, observation="relative")
    assert env.reset(0, 0).text == (
        "Box 1 right. Target 2 right of box. "
        "Near: up wall, down wall, left wall, right box. Push: right."
    )
    env.step("right")
    assert env.step("right").observation.text.startswith("Box 1 right. Target under box. Near:")
    assert env.step("jump").observation.text.startswith("Invalid. Box 1 right.")


def test_several_boxes_are_named_in_order_and_keep_their_names(tmp_path: Path) -> None:
    env = world(tmp_path, ["#######", "#.$ $.#", "#  @  #", "#######"], observation="relative")
    assert env.reset(0, 0).text.startswith(
        "Box A 1 up 1 left. Target A 1 left of box. "
        "Box B 1 up 1 right. Target B 1 right of box. Near:"
    )
    env.step("up")
    assert env.step("left").observation.text.startswith("Box A 1 left. Target A under box. Box B")


def test_other_symbols_draw_the_same_room_and_are_explained(tmp_path: Path) -> None:
    rows = ["########", "#+*$ $.#", "########"]
    env = world(tmp_path, rows, symbols="W.GBAC@")
    assert env.reset(0, 0).text.splitlines() == ["WWWWWWWW", "W@CB.BGW", "WWWWWWWW"]
    assert (
        "W wall, . floor, G target, B box, A player, C box on target, @ player on target."
    ) in env.instructions()
    usual = world(tmp_path, rows)
    assert (env.frame(), env.task_key()) == (usual.frame(), usual.task_key())


def test_the_frame_draws_boxes_and_player(tmp_path: Path) -> None:
    frame = json.loads(world(tmp_path, PUSH_RIGHT).reset(0, 0).frame or "")
    assert frame["cells"] == ["######", "#___O#", "######"]
    assert frame["overlays"] == [{"is": "box", "at": [1, 2]}, {"is": "player", "at": [1, 1]}]


@pytest.mark.parametrize(
    ("rows", "is_dead"),
    [
        (PUSH_RIGHT, False),
        (["#####", "#$ .#", "# @ #", "#####"], True),  # in a corner
        (
            ["######", "#  $ #", "#.@  #", "#    #", "######"],
            True,
        ),  # along a wall, target elsewhere
        (["#######", "#@    #", "# $$  #", "# ##..#", "#######"], True),  # frozen in a 2x2 block
        (["#######", "#@ $. #", "# **  #", "# ##  #", "#######"], False),  # the block is home
    ],
)
def test_deadlocks(rows: list[str], is_dead: bool) -> None:
    level = parse_level(rows, "here")
    assert is_deadlocked(level.maze, level.boxes) is is_dead


def test_a_lost_position_has_no_solution_and_is_flagged(tmp_path: Path) -> None:
    env = world(tmp_path, ["######", "#  . #", "#@$  #", "#    #", "######"])
    for move in ("right", "right"):
        result = env.step(move)
    assert env.solve() is None
    assert result.info == {"boxes_on_target": 0.0, "deadlock": 1.0}


def forward_distance(config: SokobanConfig, seed: int) -> int | None:
    """Length of the shortest solution by a plain search over (player, set of boxes)."""
    level = draw_level(config, seed)
    floor, targets = set(level.maze.cells), frozenset(level.maze.targets)
    seen = {(level.player, frozenset(level.boxes))}
    layer, length = list(seen), 0
    while layer:
        if any(boxes == targets for _, boxes in layer):
            return length
        following = []
        for player, boxes in layer:
            for move in MOVES:
                to = shift(player, move)
                after = boxes
                if to in boxes:
                    beyond = shift(to, move)
                    if beyond not in floor or beyond in boxes:
                        continue
                    after = boxes - {to} | {beyond}
                if to in floor and (to, after) not in seen:
                    seen.add((to, after))
                    following.append((to, after))
        layer, length = following, length + 1
    return None


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**63 - 1),
    boxes=st.integers(1, 2),
    side=st.integers(5, 6),
    walls=st.sampled_from([0.0, 0.15, 0.3]),
    shortest=st.integers(1, 4),
)
def test_levels_have_the_promised_shortest_solution(
    seed: int, boxes: int, side: int, walls: float, shortest: int
) -> None:
    level_config = SokobanConfig(
        size=side, boxes=boxes, walls=walls, min_solution=shortest,
        max_solution=shortest + 3, max_states=50_000,
    )  # fmt: skip
    level = draw_level(level_config, seed)
    length = forward_distance(level_config, seed)
    assert length is not None
    assert shortest <= length <= shortest + 3
    plan = solve(level.maze, level.player, level.boxes, 50_000)
    assert plan is not None
    assert len(plan) == length


def test_the_searches_stop_at_their_cap() -> None:
    level = parse_level(ROOM, "here")
    assert solve(level.maze, level.player, level.boxes, max_states=3) is None
    whole = states_by_distance(level.maze, 200, 100_000)
    # One box, 16 cells: 15 solved states at distance 0.
    assert len(whole[0]) == 15
    capped = states_by_distance(level.maze, 200, 40)
    assert capped == whole[: len(capped)]
    assert sum(map(len, capped)) <= 40


BOXOBAN = """; 0
#######
#@$. ##
#######

; 1
#######
##@$ .#
#######
"""


def test_boxoban_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(BOXOBAN)
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "b.xsb").write_text("A title\n" + "\n".join(PUSH_RIGHT))
    (tmp_path / "notes.md").write_text("#@$.#")
    env = registry.make("sokoban", levels=str(tmp_path))
    assert len({env.reset(seed, 0).text for seed in range(40)}) == 3


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["#####", "#@$ #", "#####"], "1 players, 1 boxes and 0 targets"),
        (["#####", "# $.#", "#####"], "0 players"),
        (["#####", "#@  #", "#####"], "1 players, 0 boxes"),
        (["#### ", "#@$. ", "#### "], "not enclosed"),
        (["######", "#@$.", "######"], "not enclosed"),
        (["########", "#@ #$. #", "########"], r"box or target at \(1, 4\) is out of reach"),
        (["#" * 65, "#@$." + " " * 60 + "#", "#" * 65], "3x65 cells"),
    ],
)
def test_bad_levels_are_refused_with_file_and_line(
    tmp_path: Path, rows: list[str], message: str
) -> None:
    (tmp_path / "bad.txt").write_text("; 0\n" + "\n".join(rows) + "\n")
    with pytest.raises(EnvParamsError, match=message) as caught:
        registry.make("sokoban", levels=str(tmp_path / "bad.txt"))
    assert "bad.txt, line 2" in str(caught.value)


def test_missing_and_empty_level_files(tmp_path: Path) -> None:
    with pytest.raises(EnvUnavailableError, match="cannot read levels"):
        registry.make("sokoban", levels=str(tmp_path / "none.txt"))
    with pytest.raises(EnvUnavailableError, match="holds no Sokoban levels"):
        registry.make("sokoban", levels=str(tmp_path))
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(EnvUnavailableError, match="cannot read levels from"):
        registry.make("sokoban", levels=str(tmp_path / "binary.txt"))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"size": [4, 4]}, "one side must be at least 5"),
        ({"size": 2}, r"size is 2, but each side must be at least 3 and at most 16"),
        ({"size": [6, 17]}, r"must be at least 3 and at most 16"),
        ({"boxes": 0}, r"must be at least 1 and at most 8"),
        ({"size": [3, 6], "boxes": 3}, r"must be at least 1 and at most 2"),
        ({"walls": 0.6}, "walls is 0.6"),
        ({"min_solution": 9}, "min_solution is 9 and max_solution 8"),
        ({"max_states": 1}, "max_states is 1"),
        ({"size": [3, 5], "min_solution": 100, "max_solution": 200}, "in 100 rooms; enlarge"),
        ({"symbols": "W.GBAC"}, "7 different characters other than spaces, for wall, floor"),
        ({"symbols": "W.GBACW"}, "7 different characters"),
        ({"symbols": "W GBAC@"}, "7 different characters"),
    ],
)
def test_bad_parameters_are_refused(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("sokoban", **params)


def test_one_side_is_a_square() -> None:
    square, room = registry.make("sokoban", size=6), registry.make("sokoban", size=[6, 6])
    assert square.reset(0, 0) == room.reset(0, 0)
