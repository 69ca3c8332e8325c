"""Programming problems with tests, and how a program is judged by them.

A program never sees what a test expects: it gets the input, and its output is compared outside.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...base import EnvUnavailableError
from ..rows import Row, read_rows
from .sandbox import Outcome, Sandbox

_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CALL = """
import json as _json, os as _os, sys as _sys
_answers = _os.dup(1)
_os.dup2(2, 1)  # what the program prints is no answer
_arguments = _json.loads(_sys.stdin.read())
_space = {{"__name__": "__program__"}}
exec(compile({program!r}, "program.py", "exec"), _space)
_name = {name!r}
_function = _space.get(_name) or getattr(_space["Solution"](), _name)
_os.write(_answers, _json.dumps(_function(*_arguments)).encode())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTest:
    """One input and what it must give. `function` is called with a list of arguments; where it is
    empty, input and output are text."""

    given: Any
    wanted: Any
    function: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is to be written, its tests, and a program that passes them where one is known."""

    text: str
    tests: tuple[ProgramTest, ...]
    solution: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """How many tests a program passed, and a sentence on the first that it failed."""

    passed: int
    total: int
    first_failure: str = ""
    timed_out: bool = False
    """Some test took too long."""

    @property
    def share(self) -> float:
        """Of the tests that it passed."""
        return self.passed / self.total


def program_of(reply: str) -> str:
    """The program in a reply: the last fenced block, or all of it."""
    blocks = _FENCE.findall(reply)
    return str(blocks[-1]) if blocks else reply


def judge(program: str, problem: Problem, sandbox: Sandbox) -> Judgement:
    """Run a program on every test of a problem, one process a test."""
    passed, first_failure = 0, ""
    outcomes = run(program, problem.tests, sandbox)
    for number, (test, outcome) in enumerate(zip(problem.tests, outcomes, strict=True), start=1):
        is_right = outcome.exit_code == 0 and is_wanted(outcome.output, test)
        passed += is_right
        if not is_right and not first_failure:
            first_failure = f"Test {number}: {_what_happened(outcome)}"
    return Judgement(
        passed=passed,
        total=len(problem.tests),
        first_failure=first_failure,
        timed_out=any(outcome.timed_out for outcome in outcomes),
    )


def run(program: str, tests: Sequence[ProgramTest], sandbox: Sandbox) -> list[Outcome]:
    """Run a program on the inputs of tests, which all call the same function or none."""
    function = tests[0].function
    if not function:
        return sandbox.run(program, [str(test.given) for test in tests])
    caller = _CALL.format(program=program, name=function)
    return sandbox.run(caller, [json.dumps(test.given) for test in tests])


def is_wanted(output: str, test: ProgramTest) -> bool:
    """Whether an output is what the test wants: numbers within 1e-6, blanks at line ends aside."""
    if not test.function:
        wanted, lines = _lines(str(test.wanted)), _lines(output)
        return len(wanted) == len(lines) and all(map(_same_line, lines, wanted))
    try:
        return _same_value(json.loads(output), test.wanted)
    except (ValueError, RecursionError):
        return False


def read_problems(path: str, *, max_tests: int) -> tuple[Problem, ...]:
    """The problems of a file, each with its first `max_tests` tests.

    Rows are those of DeepCoder (`problem`, `tests`) and LiveCodeBench (`question_content`,
    `public_test_cases`): tests are a list, or JSON text of one, of {input, output} (with
    `metadata.func_name` for a function), or one object {inputs, outputs, fn_name}.

    Raises:
        EnvUnavailableError: the file cannot be read, or no row is a problem with tests.
    """
    problems = [
        problem for row in read_rows(path, ()) if (problem := _problem(row, max_tests)) is not None
    ]
    if not problems:
        raise EnvUnavailableError(
            f"{path} holds no row with problem and tests, or question_content and public_test_cases"
        )
    return tuple(problems)


def _problem(row: Row, max_tests: int) -> Problem | None:
    text = row.get("problem") or row.get("question_content")
    tests = _decoded(row.get("tests") or row.get("public_test_cases"))
    if not isinstance(text, str) or not tests:
        return None
    metadata = _decoded(row.get("metadata"))
    function = str(metadata.get("func_name") or "") if isinstance(metadata, dict) else ""
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        text = f"{text}\n\nStart with:\n{starter}"
    if isinstance(tests, dict):
        function = str(tests.get("fn_name") or function)
        pairs = list(zip(tests.get("inputs") or (), tests.get("outputs") or (), strict=False))
    elif isinstance(tests, list):
        pairs = [
            (test["input"], test["output"])
            for test in tests
            if isinstance(test, dict) and {"input", "output"} <= test.keys()
        ]
    else:
        return None
    read = [_test(given, wanted, function) for given, wanted in pairs[:max_tests]]
    solutions = _decoded(row.get("solution") or row.get("solutions")) or ""
    solution = solutions[0] if isinstance(solutions, list) else solutions
    if not read:
        return None
    return Problem(text=text, tests=tuple(read), solution=program_of(str(solution)))


def _test(given: Any, wanted: Any, function: str) -> ProgramTest:
    if not function:
        return ProgramTest(given=_joined(given), wanted=_joined(wanted))
    if isinstance(given, str):  # one argument a line
        arguments: Any = [_decoded(line) for line in given.splitlines()]
    else:
        arguments = given if isinstance(given, list) else [given]
    return ProgramTest(given=arguments, wanted=_decoded(wanted), function=function)


def _decoded(value: Any) -> Any:
    """JSON text as what it says; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _joined(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _what_happened(outcome: Outcome) -> str:
    if outcome.timed_out:
        return "it took too long."
    if outcome.exit_code:
        last = [line for line in outcome.errors.splitlines() if line.strip()][-1:]
        return f"it failed with {last[0][:200]}" if last else "it failed."
    return "it gave another output."


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same_line(line: str, wanted: str) -> bool:
    words, wanted_words = line.split(), wanted.split()
    return line == wanted or (
        len(words) == len(wanted_words) and all(map(_same_word, words, wanted_words))
    )


def _same_word(word: str, wanted: str) -> bool:
    if word == wanted:
        return True
    if "." not in wanted:
        return False
    try:
        return math.isclose(float(word), float(wanted), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _same_value(value: Any, wanted: Any) -> bool:
    if isinstance(value, bool) or isinstance(wanted, bool):
        return value is wanted
    if isinstance(value, int | float) and isinstance(wanted, int | float):
        if isinstance(value, int) and isinstance(wanted, int):
            return value == wanted
        return math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(value, list) and isinstance(wanted, list):
        return len(value) == len(wanted) and all(map(_same_value, value, wanted))
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return value.keys() == wanted.keys() and all(
            _same_value(value[key], wanted[key]) for key in wanted
        )
    return bool(value == wanted)
