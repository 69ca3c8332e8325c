"""Problems come in the public shapes; what cannot be judged is refused as the file is opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.worlds.code.deepcoder import DeepCoder, DeepCoderConfig
from echoscope.envs.worlds.code.problem_files import chosen, read_problems
from echoscope.envs.worlds.code.programs import ProgramTest

from .public_rows import BY_HEART, ROWS, stdin


def problem_file(folder: Path, *rows: object) -> str:
    file = folder / "problems.json"
    file.write_text(json.dumps(rows))
    return str(file)


@pytest.mark.parametrize("shape", ROWS)
def test_right_programs_pass_and_wrong_ones_do_not(tmp_path: Path, shape: str) -> None:
    row, right, wrong = ROWS[shape]
    file = problem_file(tmp_path, row)
    world = DeepCoder(DeepCoderConfig(data=file, unsafe=True))
    for program in right:
        world.reset(0, 0)
        result = world.step(f"```python\n{program}\n```")
        assert (result.reward, result.success) == (1.0, True), result.observation.text
    for program in wrong:
        world.reset(0, 0)
        assert not world.step(program).success
    world.reset(0, 0)
    if solution := world.solve():
        assert world.step(solution[0]).success


def test_the_text_names_the_function_and_shows_how_to_start(tmp_path: Path) -> None:
    tests = {"fn_name": "add", "inputs": [[1, 2]], "outputs": [3]}
    start = "class Solution:\n    def add(self, a, b):"
    rows = [
        {"problem": "Sum up.", "tests": tests},
        {"problem": "Sum up by add(a, b).", "tests": tests},
        {"problem": "Sum up.", "tests": tests, "starter_code": start},
    ]
    problems = read_problems(problem_file(tmp_path, *rows), max_tests=9)
    assert [problem.text for problem in problems] == [
        "Sum up.\n\nWrite a function add.",
        "Sum up by add(a, b).",
        f"Sum up.\n\nStart with:\n{start}",
    ]


GOOD = {"problem": "x", "tests": [stdin("", "")]}
PRIVATE = "its private_test_cases are no JSON: unpack them as the loader of LiveCodeBench does"


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({}, "it has no text: name it problem, question, question_content or prompt"),
        ({"problem": 3}, "it has no text: name it problem, question, question_content or prompt"),
        ({"problem": "x"}, "it has no tests: add tests, or take it out"),
        ({"problem": "x", "tests": []}, "it has no tests: add tests, or take it out"),
        (
            {"question": "x", "input_output": '{"inputs": [], "outputs": []}'},
            "it has no tests: add tests, or take it out",
        ),
        (
            {"problem": "x", "tests": "no"},
            "its tests are a text that is no JSON: write them as JSON",
        ),
        (
            {"problem": "x", "tests": [{"input": "1"}]},
            "its test 1 is no object with input and output: add them, or take it out",
        ),
        (
            {"problem": "x", "tests": {"inputs": ["1", "2"], "outputs": ["1"]}},
            "it has 2 inputs and 1 outputs, but each input needs one output: add what is missing, "
            "or take it out",
        ),
        (
            {"problem": "x", "tests": {"inputs": "1", "outputs": "1"}},
            "its inputs and outputs must be lists: make them lists",
        ),
        (
            {"problem": "x", "tests": [{"testtype": "functional", "input": "1", "output": "1"}]},
            "its tests call a function that nothing names: add fn_name to each, or take it out",
        ),
        (
            {
                "problem": "x",
                "tests": [{"fn_name": name, "input": [1], "output": 1} for name in ("f", "g")],
            },
            "its tests call f and g, but must all call one function or none: make a row of each",
        ),
        (
            {"problem": "x", "tests": {"fn_name": "f()", "inputs": [[1]], "outputs": [1]}},
            "its tests call 'f()', which is no name of a function: change it",
        ),
        (
            {"problem": "x", "tests": [stdin("", "")], "generated_checker": "import sys"},
            "it has a generated_checker, so several answers may be right, and none runs here: take "
            "it out",
        ),
        (
            {"prompt": "x", "verification_info": {"language": "rust", "test_cases": [GOOD]}},
            "it wants rust, but only Python runs here: take it out",
        ),
        (
            {"question_content": "x", "public_test_cases": json.dumps([stdin("3", "9")])},
            "it has public_test_cases alone, which its text shows, so a program could know their "
            "outputs by heart: add private_test_cases, or name them tests",
        ),
        (
            {
                "question_content": "x",
                "public_test_cases": json.dumps([stdin("3", "9")]),
                "private_test_cases": "[]",
            },
            "it has public_test_cases alone, which its text shows, so a program could know their "
            "outputs by heart: add private_test_cases, or name them tests",
        ),
        ({"question_content": "x", "private_test_cases": "no"}, PRIVATE),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_sentence(
    tmp_path: Path, row: dict[str, Any], sentence: str
) -> None:
    file = problem_file(tmp_path, GOOD, row, GOOD, row)
    with pytest.raises(EnvUnavailableError) as raised:
        read_problems(file, max_tests=9)
    others = "(2 of 4 rows cannot be judged: 2, 4)"
    assert str(raised.value) == f"{file}, row 2 cannot be judged: {sentence} {others}"


def numbered(*lengths: int) -> list[ProgramTest]:
    return [
        ProgramTest(given=f"{number:03}".ljust(length), wanted=str(number))
        for number, length in enumerate(lengths)
    ]


def test_all_tests_run_where_they_are_few() -> None:
    tests = numbered(3, 3, 3)
    assert chosen(tests, 3, "x") == tests


def test_half_of_the_tests_that_run_have_the_longest_inputs_and_half_are_drawn() -> None:
    tests = numbered(*[3] * 20, 50, 40, 30, *[3] * 20, 20)
    picked = [int(test.wanted) for test in chosen(tests, 7, "x")]
    assert picked == sorted(picked)
    assert {20, 21, 22, 43} < set(picked)
    assert len(set(picked)) == 7
    assert [int(test.wanted) for test in chosen(tests, 7, "x")] == picked
    others = {test.wanted for text in "abcdefgh" for test in chosen(tests, 7, text)}
    assert len(others) > 15


def test_a_program_that_is_wrong_late_in_the_file_does_not_pass(tmp_path: Path) -> None:
    """Of 30 tests of one length it fails those from the eleventh on."""
    tests = [stdin(f"{n:02}", str(n)) for n in range(1, 31)]
    file = problem_file(tmp_path, {"problem": "Print the number.", "tests": tests})
    world = DeepCoder(DeepCoderConfig(data=file, unsafe=True))
    world.reset(0, 0)
    assert not world.step("n = int(input())\nprint(n if n < 11 else 0)").success
    world.reset(0, 0)
    assert world.step("print(int(input()))").observation.text == "Passed 10 of 10 tests."


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    for text in ("one", "three"):
        (problem,) = read_problems(problem_file(tmp_path, {**GOOD, "problem": text}), max_tests=9)
        assert problem.text == text


def test_examples_known_by_heart_do_not_pass(tmp_path: Path) -> None:
    """The measured case: the samples of the problem's text alone were the tests."""
    row, _, _ = ROWS["LiveCodeBench, printing"]
    world = DeepCoder(DeepCoderConfig(data=problem_file(tmp_path, row), unsafe=True))
    world.reset(0, 0)
    result = world.step(BY_HEART)
    assert result.observation.text == "Passed 2 of 3 tests. Test 3: it gave another output."
