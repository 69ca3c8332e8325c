"""Sudoku: one solution a board, rewards that cannot be farmed, conflicts that are shown."""

from __future__ import annotations

import itertools

import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError
from echoscope.envs.worlds.puzzles.sudoku import (
    Board,
    Sudoku,
    SudokuConfig,
    conflicts,
    draw_board,
    num_empty,
    numbers_around,
    solutions,
)


def filled_by_trying(board: Board) -> list[Board]:
    """All solutions of a 4x4 board: every number in every empty cell."""
    empty = [(r, c) for r in range(4) for c in range(4) if not board[r][c]]
    out = []
    for numbers in itertools.product(range(1, 5), repeat=len(empty)):
        rows = [list(row) for row in board]
        for (row, col), number in zip(empty, numbers, strict=True):
            rows[row][col] = number
        candidate = tuple(tuple(row) for row in rows)
        if not conflicts(candidate):
            out.append(candidate)
    return out


@pytest.mark.long
@pytest.mark.parametrize("seed", range(5))
def test_the_search_finds_what_trying_everything_finds(seed: int) -> None:
    board, solution = draw_board(4, 5, seed)
    assert filled_by_trying(board) == list(solutions(board)) == [solution]
    sparse = tuple(tuple(0 if r == seed % 4 else n for n in row) for r, row in enumerate(board))
    if num_empty(sparse) <= 8:
        assert sorted(filled_by_trying(sparse)) == sorted(solutions(sparse))


@pytest.mark.parametrize(("side", "empties"), [(4, 11), (9, 32), (9, 55)])
def test_a_drawn_board_has_its_empty_cells_and_one_solution(side: int, empties: int) -> None:
    for seed in range(4):
        board, solution = draw_board(side, empties, seed)
        assert num_empty(board) == empties
        assert not conflicts(solution)
        assert list(solutions(board)) == [solution]


def test_conflicts_by_hand() -> None:
    board = ((1, 0, 0, 1), (0, 1, 0, 0), (0, 0, 2, 0), (0, 0, 0, 0))
    assert conflicts(board) == {(0, 0), (0, 3), (1, 1)}


def started(**params: object) -> Sudoku:
    world = Sudoku(SudokuConfig(**params))
    world.reset(seed=3, noise_seed=0)
    return world


def test_an_episode_by_hand() -> None:
    world = started()
    first = world.reset(3, 0).text
    assert first == (
        " . [3]|[4][1]\n . [1]|[2][3]\n------+------\n[1] . |[3][4]\n . [4]| .  . \n"
        "Empty: 6. In conflict: 0."
    )
    wrong = world.step("4 at 1,1")
    assert (wrong.reward, wrong.is_effective) == (-0.5, True)
    assert wrong.observation.text.startswith("*4*[3]")
    assert wrong.observation.text.endswith("Empty: 5. In conflict: 1.")
    again = world.step("place 4 at row 1 col 1")
    assert (again.reward, again.is_valid, again.is_effective) == (0.0, True, False)
    assert world.step("1,1,2").reward == 1.0
    assert world.step("1,1,4").reward == -1.0
    given = world.step("1,2,4")
    assert (given.is_valid, given.reward) == (False, 0.0)
    assert given.observation.text.startswith('Invalid action "1,2,4". This cell is given.\n')
    rewards = [world.step(action).reward for action in world.solve()]
    assert rewards == [1.0] * 5 + [11.0]
    assert not world.step("1,1,1").is_valid


@pytest.mark.parametrize(
    "action", ["1,1", "0,1,1", "5,1,1", "1,1,5", "1,1,-1", "place x at 1,1", "\u0661,1,1"]
)
def test_what_is_no_move(action: str) -> None:
    assert not started().step(action).is_valid


def test_changing_a_cell_back_and_forth_earns_nothing() -> None:
    world = started()
    total = sum(world.step(move).reward for move in ("1,1,2", "1,1,4") * 10)
    assert total == pytest.approx(0.0)


def test_trying_numbers_until_the_reward_says_right_earns_far_less_than_knowing_them() -> None:
    world = started()
    returns = []
    for seed in range(20):
        world.reset(seed, 0)
        total = 0.0
        while guesses := world.guesses():  # every number for the first cell that is not right
            rewards = [world.step(guesses[0]).reward]
            while rewards[-1] < 0:
                rewards.append(world.step(guesses[len(rewards)]).reward)
            total += sum(rewards)
        returns.append(total)
    assert sum(returns) / len(returns) < 0.8 * 16.0  # what knowing the numbers earns


@pytest.mark.parametrize("side", [4, 9])
def test_the_expert_solves_within_the_shipped_budget(side: int) -> None:
    world = started(side=side, empties={4: 11, 9: 55}[side])
    budget = world.spec.max_turns * world.spec.max_actions_per_turn
    for seed in range(10):
        world.reset(seed, 0)
        moves = world.solve()
        assert len(moves) <= budget
        assert [world.step(move).success for move in moves][-1]


def test_bad_parameters() -> None:
    with pytest.raises(EnvParamsError, match="between 1 and 11 on a board of 4x4"):
        registry.make("sudoku", empties=12)
    with pytest.raises(EnvParamsError, match="side is 5"):
        registry.make("sudoku", side=5)


def test_the_relative_observation_lists_what_is_open_and_what_stands_around() -> None:
    world = started(empties=2, observation="relative")
    text = world.reset(0, 0).text
    first, second = (action.rsplit(",", 1) for action in world.solve())
    board = [[0 if f"Empty {r},{c}:" in text else 1 for c in range(1, 5)] for r in range(1, 5)]
    assert sum(map(sum, board)) == 14
    wrong = next(n for n in "1234" if n != first[1])
    texts = [world.step(action).observation.text for action in (f"{first[0]},{wrong}", "x")]
    assert texts[0].startswith(f"{wrong} in conflict at {first[0]}: row ")
    assert texts[1] == f"Invalid. {texts[0]}"
    after = world.step(",".join(first)).observation.text
    assert f"{first[1]} at {first[0]}." in after
    assert f"Empty {second[0]}: row " in after


def test_numbers_around_a_cell() -> None:
    board = ((1, 0, 3, 4), (0, 4, 1, 2), (2, 1, 4, 3), (4, 3, 2, 1))
    assert numbers_around(board, (0, 1)) == {
        "row": (1, 3, 4),
        "column": (1, 3, 4),
        "box": (1, 4),
    }
