"""The pocket cube: turns are those of a real cube, and the expert's solutions are the shortest."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.puzzles.rubiks import (
    MOVES,
    SOLVED,
    Rubiks,
    RubiksConfig,
    State,
    apply,
    is_solved,
    scramble,
    solution,
)


def turned(*names: str, state: State = SOLVED) -> State:
    for name in names:
        state = apply(state, MOVES[name])
    return state


def test_one_turn_as_it_is_seen() -> None:
    """The upper face turned clockwise brings the right side's upper row to the front."""
    up, down, left, right, front, back = range(6)
    after = turned("U")
    faces = [after[i : i + 4] for i in range(0, 24, 4)]
    assert faces == [
        (up,) * 4,
        (down,) * 4,
        (front, front, left, left),
        (back, back, right, right),
        (right, right, front, front),
        (left, left, back, back),
    ]


@pytest.mark.parametrize("move", MOVES)
def test_four_turns_are_none_and_a_turn_can_be_undone(move: str) -> None:
    assert turned(*[move] * 4) == SOLVED
    undone = move[0] if move.endswith("'") else f"{move}'"
    assert turned(move, undone) == SOLVED


@pytest.mark.parametrize(("moves", "order"), [("R U R' U'", 6), ("R U", 15), ("R U2 R' U'", 0)])
def test_orders_that_are_known_of_the_cube(moves: str, order: int) -> None:
    names = moves.replace("U2", "U U").split()
    state, times = turned(*names), 1
    while state != SOLVED:
        state, times = turned(*names, state=state), times + 1
    assert not order or times == order


def test_opposite_faces_turned_together_turn_the_whole_cube() -> None:
    assert is_solved(turned("R", "L'"))
    assert turned("R", "L'") != SOLVED
    assert solution(turned("R", "L'")) == []


@given(st.lists(st.sampled_from(sorted(MOVES)), max_size=12))
def test_a_solution_solves_and_is_not_longer_than_the_scramble(moves: list[str]) -> None:
    state = turned(*moves)
    path_home = solution(state)
    assert is_solved(turned(*path_home, state=state))
    assert len(path_home) <= len(moves)
    assert len(path_home) % 2 == len(moves) % 2


def test_shortest_lengths_agree_with_a_search_of_all_turns() -> None:
    """Breadth first over all twelve turns; the number of states per length is known."""
    lengths = {SOLVED: 0}
    edge = [SOLVED]
    for depth in range(1, 4):
        edge = [n for s in edge for m in MOVES.values() if (n := apply(s, m)) not in lengths]
        lengths |= dict.fromkeys(edge, depth)
        edge = list(dict.fromkeys(edge))
    shortest = Counter(len(solution(state)) for state in lengths)
    # 24 ways to hold each of 1, 6, 27 and 120 cubes; not all of the last are reached in 3 turns.
    assert all(len(solution(state)) <= depth for state, depth in lengths.items())
    assert shortest[1] >= 6
    assert shortest[2] >= 27


def test_what_is_no_cube_is_refused() -> None:
    broken = list(SOLVED)
    broken[0], broken[4] = broken[4], broken[0]
    with pytest.raises(ValueError, match="no state of a 2x2 cube"):
        solution(tuple(broken))


@pytest.mark.parametrize("depth", [1, 2, 5, 8])
def test_a_scramble_has_exactly_its_depth(depth: int) -> None:
    for seed in range(10):
        assert len(solution(scramble(depth, seed))) == depth


def test_the_expert_solves_within_the_shipped_budget() -> None:
    world = Rubiks(RubiksConfig(depth=8))
    for seed in range(20):
        world.reset(seed, 0)
        results = [world.step(f" {turn.lower()} ") for turn in world.solve()]
        assert [result.reward for result in results] == [0.0] * 7 + [1.0]
        assert not world.step("U").is_valid


@pytest.mark.parametrize(
    ("action", "turns"),
    [
        ("r\u2019", ["R'"]),
        ("R\u2032", ["R'"]),
        ("u`", ["U'"]),
        ("U2", ["U", "U"]),
        ("u2'", ["U'", "U'"]),
    ],
)
def test_turns_as_people_write_them(action: str, turns: list[str]) -> None:
    first, other = Rubiks(RubiksConfig(depth=8)), Rubiks(RubiksConfig(depth=8))
    for world in (first, other):
        world.reset(0, 0)
    result = first.step(action)
    expected = [other.step(turn) for turn in turns][-1]
    assert (result.is_valid, result.observation) == (True, expected.observation)


@pytest.mark.parametrize("action", ["2", "U3", "U22", "X2", "'", "U''", "U 2"])
def test_what_is_no_turn(action: str) -> None:
    world = Rubiks(RubiksConfig(depth=8))
    world.reset(0, 0)
    assert not world.step(action).is_valid


def test_the_default_has_cubes_enough_to_keep_some_for_evaluation() -> None:
    with EnvPool([EnvGroup(env="rubiks")], group_size=1, seed=0, split="eval") as pool:
        assert pool.varieties()[0][1].is_enough


def test_bad_parameters() -> None:
    with pytest.raises(EnvParamsError, match="depth is 9"):
        registry.make("rubiks", depth=9)
