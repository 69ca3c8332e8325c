"""Programming problems with tests, and how a program is judged by them.

A program never sees what a test expects: it gets the input, and its output is compared outside.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .sandbox import ProgramRun, Sandbox

_IMPORTS = """
import bisect, collections, functools, heapq, itertools, math, operator, re, string, sys
from bisect import *
from collections import *
from functools import *
from heapq import *
from itertools import *
from math import *
from typing import *
from builtins import *
"""
"""What a function may use without an import, as where such problems come from: their first lines
annotate with `List[int]`. There, functions may recurse deeper than usual, too."""
_CALL = """
import json as _json, os as _os, sys as _sys
_answers = _os.dup(1)
_os.dup2(2, 1)  # what the program prints is no answer
_sys.setrecursionlimit(50_000)
_arguments = [
    {{int(_key): _value for _key, _value in _one.items()}}
    if isinstance(_one, dict) and all(_key.isdecimal() for _key in _one) else _one
    for _one in _json.loads(_sys.stdin.read())
]
_space = {{"__name__": "__program__"}}
exec({imports!r}, _space)
_given = dict(_space)
exec(compile({program!r}, "program.py", "exec"), _space)
_name = {name!r}
_function = _space.get(_name)
if _function is None or _function is _given.get(_name):
    if "Solution" not in _space:
        raise NameError(f"the program does not define {{_name}}")
    _function = getattr(_space["Solution"](), _name)
_os.write(_answers, _json.dumps(_function(*_arguments)).encode())
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTest:
    """One input and what it must give. `function` is called with a list of arguments; where it is
    empty, input and output are text."""

    given: Any
    wanted: Any
    function: str = ""
    is_wrapped: bool = False
    """`wanted` is a list of one value, and that value is right, too: so TACO and APPS write what a
    function returns, and so their judges compare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramProblem:
    """What is to be written, its tests, and a program that passes them where one is known."""

    text: str
    tests: tuple[ProgramTest, ...]
    solution: str = ""
    key: str = field(init=False)
    """Of text and tests: problems that differ in either have different keys."""

    def __post_init__(self) -> None:
        content = repr((self.text, self.tests)).encode("utf-8", "replace")
        object.__setattr__(self, "key", hashlib.sha256(content).hexdigest())

    @property
    def function(self) -> str:
        """What is to be defined; "" where the program prints."""
        return self.tests[0].function


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramScore:
    """How many tests a program passed, and a sentence on the first that it failed."""

    passed: int
    total: int
    first_failure: str = ""
    timed_out: bool = False
    """Some test took too long."""

    @property
    def share(self) -> float:
        return self.passed / self.total


def judge(program: str, problem: ProgramProblem, sandbox: Sandbox) -> ProgramScore:
    """Run a program on every test of a problem, one process a test."""
    passed, first_failure = 0, ""
    outcomes = run(program, problem.tests, sandbox)
    for number, (test, outcome) in enumerate(zip(problem.tests, outcomes, strict=True), start=1):
        is_right = outcome.exit_code == 0 and is_wanted(outcome.output, test)
        passed += is_right
        if not is_right and not first_failure:
            first_failure = f"Test {number}: {_what_happened(outcome)}"
    return ProgramScore(
        passed=passed,
        total=len(problem.tests),
        first_failure=first_failure,
        timed_out=any(outcome.timed_out for outcome in outcomes),
    )


def run(program: str, tests: Sequence[ProgramTest], sandbox: Sandbox) -> list[ProgramRun]:
    """Run a program on the inputs of tests, which all call the same function or none."""
    function = tests[0].function
    if not function:
        return sandbox.run(program, [str(test.given) for test in tests])
    caller = _CALL.format(imports=_IMPORTS, program=program, name=function)
    return sandbox.run(caller, [json.dumps(test.given) for test in tests])


def is_wanted(output: str, test: ProgramTest) -> bool:
    """Whether an output is what the test wants: numbers within 1e-6, blanks at line ends aside."""
    if not test.function:
        expected_lines, lines = _lines(str(test.wanted)), _lines(output)
        return len(expected_lines) == len(lines) and all(map(_same_line, lines, expected_lines))
    try:
        value = json.loads(output)
        return _same_value(value, test.wanted) or (
            test.is_wrapped and _same_value(value, test.wanted[0])
        )
    except (ValueError, RecursionError, OverflowError):  # a number that no float holds, too
        return False


def _what_happened(outcome: ProgramRun) -> str:
    if outcome.timed_out:
        return "it took too long."
    if outcome.exit_code:
        last = [line for line in outcome.errors.splitlines() if line.strip()][-1:]
        return f"it failed with {last[0][:200]}" if last else "it failed."
    return "it gave another output."


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _same_line(line: str, expected: str) -> bool:
    tokens, wanted_words = line.split(), expected.split()
    return line == expected or (
        len(tokens) == len(wanted_words) and all(map(_same_word, tokens, wanted_words))
    )


def _same_word(word: str, expected: str) -> bool:
    if word == expected:
        return True
    if "." not in expected:
        return False
    try:
        return math.isclose(float(word), float(expected), rel_tol=1e-6, abs_tol=1e-6)
    except ValueError:
        return False


def _same_value(value: Any, expected: Any) -> bool:
    if isinstance(value, bool) or isinstance(expected, bool):
        return value is expected
    if isinstance(value, int | float) and isinstance(expected, int | float):
        if isinstance(value, int) and isinstance(expected, int):
            return value == expected
        return math.isclose(value, expected, rel_tol=1e-6, abs_tol=1e-6)
    if isinstance(value, list) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_same_value, value, expected))
    if isinstance(value, Mapping) and isinstance(expected, Mapping):
        return value.keys() == expected.keys() and all(
            _same_value(value[key], expected[key]) for key in expected
        )
    return bool(value == expected)
