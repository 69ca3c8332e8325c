"""Programming problems of files in the public shapes, and which of their tests run.

Read are rows of DeepCoder, PrimeIntellect, TACO, APPS and LiveCodeBench. A row that cannot be
judged is an error of the file: left out in silence, it would change what a run trains on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...base import EnvUnavailableError, shorten
from ..rows import Row, cached_by_files, read_rows
from .fences import program_of
from .programs import ProgramProblem, ProgramTest

_TEXTS = ("problem", "question", "question_content", "prompt")
_SOLUTIONS = ("solution", "solutions", "gold_standard_solution")
_JUDGES = ("checker", "generated_checker", "interaction_format")
"""Of rows whose answers need a program of their own to be judged, as Codeforces problems do."""
_MAX_SHOWN = 20
"""Numbers of rows in an error."""


class _CannotJudgeError(ValueError):
    """The rule that a row breaks, and the way out."""


@cached_by_files(8)
def read_problems(path: str, *, max_tests: int) -> tuple[ProgramProblem, ...]:
    """The problems of a file, each with `max_tests` of its tests: see `chosen`.

    What a row may have, `DeepCoderConfig` says.

    Raises:
        EnvUnavailableError: the file cannot be read, or a row cannot be judged. The sentence names
            the first such row, the rule, the way out, and which others there are.
    """
    rows = read_rows(path, ())
    problems: list[ProgramProblem] = []
    refused: list[tuple[int, str]] = []
    for number, row in enumerate(rows, start=1):
        try:
            problems.append(_problem(row, max_tests))
        except _CannotJudgeError as error:
            refused.append((number, str(error)))
    if refused:
        number, rule = refused[0]
        refused_lines = ", ".join(str(other) for other, _ in refused[:_MAX_SHOWN])
        more = ", ..." if len(refused) > _MAX_SHOWN else ""
        raise EnvUnavailableError(
            f"{path}, row {number} cannot be judged: {rule} ({len(refused)} of {len(rows)} rows "
            f"cannot be judged: {refused_lines}{more})"
        )
    return tuple(problems)


def chosen(tests: Sequence[ProgramTest], most: int, text: str) -> list[ProgramTest]:
    """The tests of a problem that run: all, or half of them those with the longest inputs and half
    drawn from the others, always the same for one text. They stay in their order."""
    if len(tests) <= most:
        return list(tests)
    seed = int.from_bytes(hashlib.sha256(text.encode("utf-8", "replace")).digest()[:8])
    order = [int(index) for index in np.random.default_rng(seed).permutation(len(tests))]
    by_length = sorted(order, key=lambda index: -len(str(tests[index].given)))
    longest = set(by_length[: (most + 1) // 2])
    drawn = [index for index in order if index not in longest][: most - len(longest)]
    return [tests[index] for index in sorted(longest.union(drawn))]


def _problem(row: Row, max_tests: int) -> ProgramProblem:
    text = next((row[name] for name in _TEXTS if row.get(name)), None)
    if not isinstance(text, str):
        names = f"{', '.join(_TEXTS[:-1])} or {_TEXTS[-1]}"
        raise _CannotJudgeError(f"it has no text: name it {names}")
    for name in _JUDGES:
        if row.get(name):
            raise _CannotJudgeError(
                f"it has a {name}, so several answers may be right, and none runs here: take it out"
            )
    tests = _tests_of(row)
    function = tests[0].function
    starter = row.get("starter_code")
    if isinstance(starter, str) and starter.strip():
        text = f"{text}\n\nStart with:\n{starter}"
    if function not in text:
        text = f"{text}\n\nWrite a function {function}."
    return ProgramProblem(
        text=text,
        tests=tuple(chosen(tests, max_tests, text)),
        solution=program_of(_solution(row), function),
    )


def _tests_of(row: Row) -> list[ProgramTest]:
    metadata = _decoded(row.get("metadata"))
    of_row = metadata.get("func_name") if isinstance(metadata, dict) else None
    pairs = _pairs(_raw_tests(row), of_row)
    if not pairs:
        raise _CannotJudgeError("it has no tests: add tests, or take it out")
    names = sorted({name for _, _, name in pairs})
    if len(names) > 1:
        raise _CannotJudgeError(
            f"its tests call {' and '.join(name or 'none' for name in names)}, but must all call "
            "one function or none: make a row of each"
        )
    if names[0] and not names[0].isidentifier():
        raise _CannotJudgeError(
            f"its tests call {shorten(names[0], 60)!r}, which is no name of a function: change it"
        )
    is_wrapped = bool(names[0]) and all(
        not isinstance(given, str) and isinstance(expected, list) and len(expected) == 1
        for given, expected, _ in pairs
    )
    return [_test(*pair, is_wrapped=is_wrapped) for pair in pairs]


def _raw_tests(row: Row) -> Any:
    """Tests as the file has them: a list of objects, or one object of lists."""
    for name in ("tests", "input_output"):
        if row.get(name):
            return _decoded(row[name])
    checked = _decoded(row.get("verification_info"))
    if isinstance(checked, dict):
        if (language := checked.get("language") or "python") != "python":
            raise _CannotJudgeError(
                f"it wants {shorten(str(language), 20)}, but only Python runs here: take it out"
            )
        return _decoded(checked.get("test_cases", checked))
    public, hidden = (_decoded(row.get(f"{which}_test_cases")) for which in ("public", "private"))
    if isinstance(hidden, str) and hidden:
        raise _CannotJudgeError(
            "its private_test_cases are no JSON: unpack them as the loader of LiveCodeBench does"
        )
    if public and not hidden:
        raise _CannotJudgeError(
            "it has public_test_cases alone, which its text shows, so a program could know their "
            "outputs by heart: add private_test_cases, or name them tests"
        )
    return [*(public or []), *hidden] if hidden else None


def _pairs(tests: Any, of_row: Any) -> list[tuple[Any, Any, str]]:
    """(input, output, function) of every test."""
    if isinstance(tests, dict):
        given, expected_list = (_decoded(tests.get(name)) or [] for name in ("inputs", "outputs"))
        if not isinstance(given, list) or not isinstance(expected_list, list):
            raise _CannotJudgeError("its inputs and outputs must be lists: make them lists")
        if len(given) != len(expected_list):
            raise _CannotJudgeError(
                f"it has {len(given)} inputs and {len(expected_list)} outputs, but each input "
                "needs one output: add what is missing, or take it out"
            )
        name = str(tests.get("fn_name") or of_row or "")
        return [(*pair, name) for pair in zip(given, expected_list, strict=True)]
    if isinstance(tests, str):
        raise _CannotJudgeError("its tests are a text that is no JSON: write them as JSON")
    if not isinstance(tests, list):
        return []
    pairs = []
    for number, test in enumerate(tests, start=1):
        if not isinstance(test, dict) or not {"input", "output"} <= test.keys():
            raise _CannotJudgeError(
                f"its test {number} is no object with input and output: add them, or take it out"
            )
        pairs.append((test["input"], test["output"], _function_of(test, of_row)))
    return pairs


def _function_of(test: Mapping[str, Any], of_row: Any) -> str:
    kind = str(test.get("testtype") or test.get("type") or "")
    metadata = _decoded(test.get("metadata"))
    named = metadata.get("func_name") if isinstance(metadata, dict) else None
    name = str(test.get("fn_name") or named or of_row or "")
    if kind.startswith("stdin"):
        return ""
    if kind in ("functional", "function_call") and not name:
        raise _CannotJudgeError(
            "its tests call a function that nothing names: add fn_name to each, or take it out"
        )
    return name


def _test(given: Any, expected: Any, function: str, *, is_wrapped: bool) -> ProgramTest:
    if not function:
        return ProgramTest(given=_joined(given), wanted=_joined(expected))
    if isinstance(given, str):  # LiveCodeBench: one argument a line, all as JSON text
        given = [_decoded(line) for line in given.splitlines() if line.strip()]
        expected = _decoded(expected)
    arguments = given if isinstance(given, list) else [given]
    return ProgramTest(given=arguments, wanted=expected, function=function, is_wrapped=is_wrapped)


def _solution(row: Row) -> str:
    for name in _SOLUTIONS:
        value = _decoded(row.get(name))
        for solution in value if isinstance(value, list) else [value]:
            if isinstance(solution, str) and solution.strip():
                return solution
    return ""


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
