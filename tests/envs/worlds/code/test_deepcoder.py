"""Programs are judged by tests that they never see; problems come in the public shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pools import begin

from echoscope.envs import registry
from echoscope.envs.base import EnvParamsError, EnvUnavailableError
from echoscope.envs.pool import EnvPool
from echoscope.envs.settings import EnvGroup
from echoscope.envs.worlds.code.deepcoder import MADE_PROBLEMS, DeepCoder, DeepCoderConfig
from echoscope.envs.worlds.code.problem_files import read_problems
from echoscope.envs.worlds.code.programs import ProgramTest, is_wanted

from .conftest import needs_sandbox

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
    ("output", "expected", "is_right"),
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
def test_texts_are_compared_by_lines_and_words(output: str, expected: str, is_right: bool) -> None:
    assert is_wanted(output, ProgramTest(given="", wanted=expected)) is is_right


@pytest.mark.parametrize(
    ("output", "expected", "is_right"),
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
def test_values_are_compared_as_values(output: str, expected: Any, is_right: bool) -> None:
    assert is_wanted(output, ProgramTest(given=[], wanted=expected, function="f")) is is_right


def test_the_reward_is_the_share_of_tests_that_passed(tmp_path: Path) -> None:
    world = world_of(tmp_path, ADDITION, attempts=2)
    half = world.step("print(3)")
    assert (half.reward, half.success, half.terminated) == (0.5, False, False)
    assert half.observation.text == "Passed 1 of 2 tests. Test 2: it gave another output."
    right = world.step("print(sum(map(int, input().split())))")
    assert (right.reward, right.success, right.terminated) == (1.0, True, True)
    assert not world.step("print(3)").is_valid


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("1 / 0", "Test 1: it failed with ZeroDivisionError: division by zero"),
        ("def (", "Test 1: it failed with SyntaxError: invalid syntax"),
        ("print(", "Test 1: it failed with SyntaxError: '(' was never closed"),
        ("raise SystemExit(2)", "Test 1: it failed."),
    ],
)
def test_what_went_wrong_is_said(tmp_path: Path, program: str, sentence: str) -> None:
    result = world_of(tmp_path, ADDITION).step(program)
    assert result.observation.text == f"Passed 0 of 2 tests. {sentence}"


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
    assert len(texts) == len(read_problems(MADE_PROBLEMS, max_tests=9))


@pytest.mark.parametrize("value", ["10**400", "-10**400", "float('nan')", "{}", "[[[]]]", "1j"])
def test_no_value_that_a_function_returns_raises(tmp_path: Path, value: str) -> None:
    tests = {"fn_name": "half", "inputs": [[3]], "outputs": [1.5]}
    world = world_of(tmp_path, {"problem": "Write half(x).", "tests": tests})
    assert world.step(f"def half(x): return {value}").reward == 0


def test_verdicts_are_of_the_tests_and_not_of_the_problem_s_text(tmp_path: Path) -> None:
    program = "print(sum(map(int, input().split())))"
    for answer, reward in (("3", 1.0), ("4", 0.0), ("3", 1.0)):
        row = {"problem": "Add.", "tests": [{"input": "1 2", "output": answer}]}
        assert world_of(tmp_path, row).step(program).reward == reward


@needs_sandbox()
def test_verdicts_are_of_the_walls(tmp_path: Path) -> None:
    """A program that needs another process passes where nothing stops it, and only there."""
    row = {"problem": "Print 1 by echo.", "tests": [{"input": "", "output": "1"}]}
    file = tmp_path / "problems.json"
    file.write_text(json.dumps([row]))
    for unsafe, reward in ((True, 1.0), (False, 0.0), (True, 1.0)):
        world = DeepCoder(DeepCoderConfig(data=str(file), unsafe=unsafe))
        world.reset(0, 0)
        assert world.step("import os; os.system('echo 1')").reward == reward


def test_a_long_output_is_read_to_its_end(tmp_path: Path) -> None:
    output = "\n".join(map(str, range(30_000)))  # 168,889 characters
    world = world_of(tmp_path, {"problem": "x", "tests": [{"input": "", "output": output}]})
    assert world.step("for n in range(30_000): print(n)").success
    world.reset(0, 0)
    assert not world.step("for n in range(30_001): print(n)").success


def test_a_long_number_is_an_answer_like_any_other(tmp_path: Path) -> None:
    tests = [{"input": "5000", "output": "1" + "0" * 5000}]
    world = world_of(tmp_path, {"problem": "Print 10 to the power.", "tests": tests})
    assert world.step("print(10 ** int(input()))").success


def test_a_function_may_recurse(tmp_path: Path) -> None:
    tests = {"fn_name": "depth", "inputs": [[20_000]], "outputs": [20_000]}
    world = world_of(tmp_path, {"problem": "Write depth(n).", "tests": tests})
    assert world.step("def depth(n): return n and 1 + depth(n - 1)").success


def test_a_function_may_annotate_and_call_as_where_its_problem_comes_from(tmp_path: Path) -> None:
    tests = {"fn_name": "most", "inputs": [[[1, 3, 3]]], "outputs": [3]}
    row = {"problem": "Write most.", "tests": tests}
    program = """class Solution:
    def most(self, numbers: List[int]) -> Optional[int]:
        return Counter(numbers).most_common(1)[0][0] if pow(2, 3, 5) == 3 else inf"""
    assert world_of(tmp_path, row).step(program).success


def test_what_a_function_may_import_is_not_what_it_must_define(tmp_path: Path) -> None:
    tests = {"fn_name": "gcd", "inputs": [[4, 6]], "outputs": [2]}
    world = world_of(tmp_path, {"problem": "Write gcd(a, b).", "tests": tests}, attempts=9)
    failed = world.step("x = 1")
    assert failed.observation.text.endswith("NameError: the program does not define gcd")
    assert world.step("class Solution:\n    def gcd(self, a, b): return 2").success


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
            keys[split] = {slot.task_key for step in range(3) for slot in begin(pool, step)}
    assert not keys["train"] & keys["eval"]
