"""Countdown: every drawn task can be solved, an expression is read and never run."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.reserving import is_reserved
from echoscope.envs.worlds.puzzles.countdown import (
    Countdown,
    CountdownConfig,
    draw_task,
    find_expression,
)
from echoscope.envs.worlds.tools.calculator import calculate


@pytest.fixture
def task(tmp_path: Path) -> Countdown:
    """Numbers 2, 3, 7 and the target 20, with two attempts."""
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps({"nums": [7, 2, 3], "target": 20}))
    world = Countdown(CountdownConfig(data=str(file), attempts=2))
    assert world.reset(0, 0).text == "Numbers: 2, 3, 7. Target: 20."
    return world


@pytest.mark.parametrize(
    ("action", "reward", "answer"),
    [
        ("2*(3+7)", 1.0, "2*(3+7) is 20, as wanted."),
        ("2 * (3 + 7) = 20", 1.0, "2 * (3 + 7) is 20, as wanted."),
        ("2+3+7", 0.1, "2+3+7 is 12, not 20."),
        ("7/2/3", 0.1, "7/2/3 is 1.166667, not 20."),
        ("2*(3+7)+0*7", 0.0, "Use each of 2, 3, 7 exactly once."),
        ("20", 0.0, "Use each of 2, 3, 7 exactly once."),
        ("7/(2-3+1)", 0.0, "Use each of 2, 3, 7 exactly once."),
    ],
)
def test_an_attempt(task: Countdown, action: str, reward: float, answer: str) -> None:
    result = task.step(action)
    assert (result.reward, result.observation.text, result.is_valid) == (reward, answer, True)
    assert result.terminated == result.success == (reward == 1.0)


def test_a_division_by_zero_is_an_attempt(tmp_path: Path) -> None:
    file = tmp_path / "tasks.json"
    file.write_text(json.dumps([{"nums": [1, 1, 4], "target": 4}]))
    world = Countdown(CountdownConfig(data=str(file)))
    world.reset(0, 0)
    result = world.step("4/(1-1)")
    assert (result.reward, result.observation.text) == (0.1, "Error: division by zero.")
    assert (result.terminated, result.success, world.solve()) == (True, False, None)


@pytest.mark.parametrize(
    "action",
    [
        "",
        "2**3",
        "__import__('os').getcwd()",
        "2+",
        "x+y",
        "2.0*(3+7)",
        "9" * 5000,
        "(" * 70,
        "=20",
    ],
)
def test_what_is_no_expression_costs_no_attempt(task: Countdown, action: str) -> None:
    for _ in range(3):
        result = task.step(action)
        assert (result.is_valid, result.terminated, result.reward) == (False, False, 0.0)
    assert task.step("2*(3+7)").success


def test_the_last_attempt_ends_the_episode(task: Countdown) -> None:
    assert not task.step("2+3+7").terminated
    assert task.step("2+3-7").terminated
    assert not task.step("2*(3+7)").is_valid


@pytest.mark.parametrize("numbers", [2, 3, 4, 6])
def test_the_expert_solves_every_drawn_task(numbers: int) -> None:
    world = Countdown(CountdownConfig(numbers=numbers))
    for seed in range(50):
        world.reset(seed, 0)
        assert [world.step(action).reward for action in world.solve() or []] == [1.0]


@pytest.mark.parametrize("params", [{}, {"operations": "+-"}, {"numbers": 5}])
def test_no_drawn_target_is_the_plain_sum(params: dict[str, object]) -> None:
    world = Countdown(CountdownConfig(**params))
    for seed in range(200):
        world.reset(seed, 0)
        assert not world.step(world.guesses()[0]).success


def test_the_hardest_setting_has_tasks() -> None:
    config = CountdownConfig(numbers=6, max_number=999, max_target=999)
    assert len({Countdown(config).reset(seed, 0).text for seed in range(20)}) == 20


@given(st.lists(st.integers(0, 12), min_size=2, max_size=4), st.integers(0, 40))
def test_a_found_expression_has_the_value(numbers: list[int], target: int) -> None:
    expression = find_expression(tuple(numbers), target)
    if expression is not None:
        assert calculate(expression) == Fraction(target)
    if sum(numbers) == target:
        assert expression is not None


@pytest.mark.parametrize(
    ("numbers", "seed", "solution", "target"),
    [
        (2, 1, "7+5", 12),
        (3, 5, "(1-14)+17", 4),
        (4, 9, "((1+17)+3)-14", 7),
        (6, 13, "8-((5/(8-7))-(10+16))", 29),
    ],
)
def test_a_seed_draws_the_task_that_it_always_drew(
    numbers: int, seed: int, solution: str, target: int
) -> None:
    task = draw_task(CountdownConfig(numbers=numbers), seed)
    assert (task.solution, task.target) == (solution, target)


def test_training_and_evaluation_share_no_task() -> None:
    world = registry.make("countdown")
    keys = []
    for seed in range(400):
        world.reset(seed, 0)
        keys.append(world.task_key())
    share = sum(is_reserved(key) for key in keys if key) / len(keys)
    assert 0.05 < share < 0.25


def test_a_parquet_file_gives_its_solvable_rows(tmp_path: Path) -> None:
    file = tmp_path / "tasks.parquet"
    rows = {"nums": [[44, 19, 35], [1, 1], [63, 95, 96]], "target": [98, 50, 64]}
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
    world = Countdown(CountdownConfig(data=str(file)))
    tasks = {world.reset(seed, 0).text for seed in range(30)}
    assert tasks == {"Numbers: 19, 35, 44. Target: 98.", "Numbers: 63, 95, 96. Target: 64."}
    assert world.num_tasks == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", "", "holds no rows"),
        ("a.jsonl", '{"nums": [1, 2]}', "row 1 has no 'target': it has nums"),
        ("a.jsonl", '{"nums": [1, 2], "target": 3}\n{"nums"', "line 2 is not JSON"),
        ("a.jsonl", "[1]", "row 1 is not an object"),
        ("a.json", "{}", "must hold a list of objects"),
        ("a.json", '[{"nums": [1, 1], "target": 50}]', "no task of 2 to 6 whole numbers"),
        ("a.json", '[{"nums": ["1", true], "target": 1}]', "no task of 2 to 6 whole numbers"),
        ("a.parquet", "PAR1", "cannot read"),
        ("a.csv", "nums,target", r"is none of \.jsonl, \.json, \.parquet"),
    ],
)
def test_a_bad_file_is_one_sentence(tmp_path: Path, name: str, content: str, message: str) -> None:
    file = tmp_path / name
    file.write_text(content)
    with pytest.raises(EnvUnavailableError, match=message) as caught:
        registry.make("countdown", data=str(file))
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(EnvUnavailableError, match=r"cannot read no/such\.json: No such file"):
        registry.make("countdown", data="no/such.json")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"numbers": 1}, "numbers is 1"),
        ({"operations": "*/"}, "must hold \\+ and -"),
        ({"max_number": 500}, "max_target is 100"),
        ({"attempts": 0}, "attempts is 0"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("countdown", **params)
