"""Programs are judged by tests that they never see; problems come in the public shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.code.deepcoder import MADE_PROBLEMS, DeepCoder, DeepCoderConfig
from echoscope.envs.worlds.code.programs import ProgramTest, is_wanted, program_of, read_problems

UNSAFE = {"unsafe": True}
"""Judging is the same with and without walls; these tests run where there is no bubblewrap."""


def world_of(folder: Path, row: object, **params: Any) -> DeepCoder:
    file = folder / "problems.json"
    file.write_text(json.dumps([row]))
    world = DeepCoder(DeepCoderConfig(data=str(file), unsafe=True, **params))
    world.reset(0, 0)
    return world


ADDITION = {
    "problem": "Add two numbers.",
    "tests": [{"input": "1 2", "output": "3"}, {"input": "5 -5", "output": "0"}],
}


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("print(1)", "print(1)"),
        ("So:\n```python\nprint(1)\n```\nThat is it.", "print(1)\n"),
        ("```\na\n```\nor\n```py\nb\n```", "b\n"),
        ("```python\nprint(1)", "print(1)"),
    ],
)
def test_the_program_in_a_reply(reply: str, program: str) -> None:
    assert program_of(reply) == program


@pytest.mark.parametrize(
    ("output", "wanted", "is_right"),
    [
        ("3\n", "3", True),
        ("3 \n\n", "3\n", True),
        ("3", "3\n4", False),
        ("0.3333333334", "0.33333333", True),
        ("0.34", "0.33", False),
        ("3.0", "3", False),
        ("1 2", "1  2", True),
    ],
)
def test_texts_are_compared_by_lines_and_words(output: str, wanted: str, is_right: bool) -> None:
    assert is_wanted(output, ProgramTest(given="", wanted=wanted)) is is_right


@pytest.mark.parametrize(
    ("output", "wanted", "is_right"),
    [
        ("[1, 2]", [1, 2], True),
        ("1.0000000001", 1, True),
        ("true", 1, False),
        ('{"a": [null]}', {"a": [None]}, True),
        ("[1]", [1, 2], False),
        ("not JSON", "not JSON", False),
        ('"x"', "x", True),
    ],
)
def test_values_are_compared_as_values(output: str, wanted: Any, is_right: bool) -> None:
    assert is_wanted(output, ProgramTest(given=[], wanted=wanted, function="f")) is is_right


def test_the_reward_is_the_share_of_tests_that_passed(tmp_path: Path) -> None:
    world = world_of(tmp_path, ADDITION, attempts=2)
    half = world.step("print(3)")
    assert (half.reward, half.success, half.terminated) == (0.5, False, False)
    assert half.observation.text == "Passed 1 of 2 tests. Test 2: it gave another output."
    right = world.step("print(sum(map(int, input().split())))")
    assert (right.reward, right.success, right.terminated) == (1.0, True, True)
    assert not world.step("print(3)").is_valid


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("1 / 0", "Test 1: it failed with ZeroDivisionError: division by zero"),
        ("def (", "Test 1: it failed with SyntaxError: invalid syntax"),
        ("print(", "Test 1: it failed with SyntaxError: '(' was never closed"),
        ("raise SystemExit(2)", "Test 1: it failed."),
    ],
)
def test_what_went_wrong_is_said(tmp_path: Path, program: str, said: str) -> None:
    result = world_of(tmp_path, ADDITION).step(program)
    assert result.observation.text == f"Passed 0 of 2 tests. {said}"


@pytest.mark.parametrize("program", ["def add(a, b): return a + b", "add = lambda a, b: b + a"])
def test_a_function_is_called(tmp_path: Path, program: str) -> None:
    row = {
        "problem": "Write add(a, b).",
        "tests": {"fn_name": "add", "inputs": [[1, 2], ["x", "y"]], "outputs": [3, "xy"]},
    }
    world = world_of(tmp_path, row, attempts=9)
    share = {True: 1.0, False: 0.5}[program.startswith("def")]
    assert world.step(program).reward == share
    noisy = f"print('hello')\n{program}"
    assert world_of(tmp_path, row).step(noisy).reward == share


def test_problems_of_livecodebench(tmp_path: Path) -> None:
    row = {
        "question_content": "Return the largest number.",
        "starter_code": "class Solution:\n    def most(self, numbers):",
        "public_test_cases": json.dumps([{"input": "[1, 3, 2]", "output": "3"}]),
        "metadata": json.dumps({"func_name": "most"}),
    }
    world = world_of(tmp_path, row)
    assert world.reset(0, 0).text.endswith(
        "Start with:\nclass Solution:\n    def most(self, numbers):"
    )
    program = "class Solution:\n    def most(self, numbers):\n        return max(numbers)"
    assert world.step(program).success


def test_problems_of_deepcoder_have_text_for_tests(tmp_path: Path) -> None:
    tests = json.dumps({"inputs": ["2\n"], "outputs": [["4"]]})
    world = world_of(tmp_path, {"problem": "Double it.", "tests": tests})
    assert world.step("print(2 * int(input()))").success


@pytest.mark.long
def test_every_made_problem_is_solved_by_its_program_and_not_by_nothing() -> None:
    world = registry.make("deepcoder", **UNSAFE)
    texts = set()
    for seed in range(60):
        first = world.reset(seed, 0)
        if first.text in texts:
            continue
        texts.add(first.text)
        assert world.step((world.solve() or [""])[0]).success, first.text
        world.reset(seed, 0)
        assert not world.step("pass").success
    assert len(texts) == len(read_problems(str(MADE_PROBLEMS), max_tests=9))


@pytest.mark.parametrize(
    "row", [{}, {"problem": "x"}, {"problem": "x", "tests": "no"}, {"problem": 3}]
)
def test_rows_without_tests_are_no_problems(tmp_path: Path, row: object) -> None:
    with pytest.raises(EnvUnavailableError, match="no row with problem and tests"):
        world_of(tmp_path, row)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"attempts": 0}, "attempts is 0"),
        ({"seconds": 0.0}, "seconds is 0"),
        ({"memory_mb": 1}, "memory_mb"),
    ],
)
def test_bad_parameters(params: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvParamsError, match=message):
        registry.make("deepcoder", **params)


def texts_of(**params: Any) -> set[str]:
    world = DeepCoder(DeepCoderConfig(unsafe=True, **params))
    return {world.reset(seed, 0).text for seed in range(400)}


def test_training_and_evaluation_take_different_problems_of_a_small_file() -> None:
    train, evaluation = texts_of(part="train"), texts_of(part="eval")
    assert not train & evaluation
    assert train | evaluation == texts_of()
    assert (len(train), len(evaluation)) == (12, 4)


def test_a_problem_that_stands_twice_in_a_file_is_in_one_part(tmp_path: Path) -> None:
    file = tmp_path / "problems.json"
    rows = [{**ADDITION, "problem": f"Add, {n % 5}."} for n in range(20)]
    file.write_text(json.dumps(rows))
    train, evaluation = (texts_of(data=str(file), part=part) for part in ("train", "eval"))
    assert evaluation == {"Add, 3."}
    assert train == {f"Add, {n}." for n in (0, 1, 2, 4)}
    file.write_text(json.dumps(rows[:3]))
    with pytest.raises(EnvUnavailableError, match="too few different problems for a part 'eval'"):
        registry.make("deepcoder", data=str(file), unsafe=True, part="eval")


def test_evaluation_has_problems_of_its_own_in_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "problems.json"
    file.write_text(json.dumps([{**ADDITION, "problem": f"Add, {n}."} for n in range(300)]))
    group = EnvGroup(env="deepcoder", groups=40, params={"data": str(file), "unsafe": True})
    keys: dict[str, set[str | None]] = {}
    for split in ("train", "eval"):
        with EnvPool([group], group_size=1, seed=0, split=split) as pool:
            keys[split] = {slot.task_key for step in range(3) for slot in pool.reset(step)}
    assert not keys["train"] & keys["eval"]
