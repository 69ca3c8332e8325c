"""Countdown: write an expression of the given numbers that has the wanted value."""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ...base import EnvParamsError, EnvSpec, hash_task
from ...params import require, require_within
from ..rows import Row, read_items
from ..task_env import AttemptEnv, drawn
from ..tools.calculator import CalculationError, calculate, number_text

MAX_NUMBERS = 6
_RIGHT, _ATTEMPT = 1.0, 0.1
_DRAWS = 10_000
"""Attempts to draw a task."""
_SUMLESS_FROM = 3
"""From so many numbers on, no drawn target is the sum of all; two have too few other values."""
_BY_ZERO = "division by zero"
_INTEGERS = re.compile(r"\d+")
_Value = int | Fraction
"""Exact; whole numbers until something is divided, because fractions are slow."""
_APPLY: Mapping[str, Callable[[_Value, _Value], _Value]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": Fraction,
}
_Valued = tuple[_Value, str]
"""A value with the expression that has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CountdownConfig:
    """Difficulty of `countdown`.

    `numbers`: how many are given. `max_number`: they are whole numbers from 1 to this.
    `max_target`: the wanted value is a whole number from 1 to this. `operations`: which the
    solution may need (all four may be written). `attempts`: valid expressions in an episode.
    `data`: a file with the columns `nums` and `target` (JSON lines, a JSON list or Parquet), whose
    rows are the tasks instead; rows without a solution are left out.
    """

    numbers: int = 3
    max_number: int = 20
    max_target: int = 100
    operations: str = "+-*/"
    attempts: int = 1
    data: str | None = None

    def __post_init__(self) -> None:
        require_within(self, numbers=(2, MAX_NUMBERS), max_number=(3, 999), attempts=(1, math.inf))
        require_within(self, " (from max_number on)", max_target=(self.max_number, 9999))
        require(
            {"+", "-"} <= set(self.operations) <= set(_APPLY),
            f"operations is {self.operations!r}, but must hold + and -, and may hold * and /",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountdownTask:
    """Numbers in rising order, a target, and an expression that reaches it."""

    numbers: tuple[int, ...]
    target: int
    solution: str


class Countdown(AttemptEnv[CountdownConfig]):
    """An expression of all given numbers that has the wanted value.

    Description:
        The task names whole numbers, in rising order, and a target. Every task has a solution that
        uses each number exactly once. From three numbers on, no drawn target is their plain sum.
    Observation:
        "Numbers: 3, 5, 7. Target: 16." and after an attempt "3*5+7 is 22, not 16."
    Actions:
        An expression of whole numbers, + - * / and brackets, such as `(3+5)*2`. An equals sign and
        a value may follow.
    Rewards:
        1 if it uses every given number once and has the target's value; 0.1 if it uses every number
        once and has another value, or divides by zero; else 0.
    Episode end:
        The target is reached, or no attempt is left. A text that is no expression costs no attempt.
    Success:
        The target is reached.
    Seeds:
        `seed` draws numbers and target; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation. `data` takes files of Countdown-Tasks-3to4.
    Example:
        >>> world = Countdown(CountdownConfig(numbers=4))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> world.step(world.solve()[0]).reward
        1.0
    """

    spec = EnvSpec(
        id="countdown",
        config_type=CountdownConfig,
        max_turns=3,
        description="Combine all given numbers with + - * / to reach the target.",
    )
    title = "Countdown"

    def __init__(self, config: CountdownConfig | None = None) -> None:
        super().__init__(config)
        data = self._config.data
        self._tasks = None if data is None else read_tasks(data)
        self._task = CountdownTask(numbers=(1, 1), target=2, solution="1+1")

    def begin(self, seed: int, noise_seed: int) -> None:
        if self._tasks is None:
            self._task = draw_task(self._config, seed)
        else:
            self._task = self._tasks[drawn(seed, len(self._tasks))]
        task = f"Numbers: {self._numbers}. Target: {self._task.target}."
        self.pose(task, self._task.solution)

    def judge(self, action: str) -> tuple[float, bool, str] | None:
        expression = action.split("=", maxsplit=1)[0].strip()
        value, problem = _read(expression)
        if problem not in ("", _BY_ZERO):
            return None
        if Counter(map(int, _INTEGERS.findall(expression))) != Counter(self._task.numbers):
            return 0.0, False, f"Use each of {self._numbers} exactly once."
        if value is None:
            return _ATTEMPT, False, f"Error: {problem}."
        is_right = value == self._task.target
        verdict = "as wanted" if is_right else f"not {self._task.target}"
        news = f"{expression} is {number_text(value)}, {verdict}."
        return _RIGHT if is_right else _ATTEMPT, is_right, news

    def instructions(self) -> str:
        return (
            "Write an expression that uses each given number exactly once, with + - * / and "
            "brackets, and has the value of the target. Action: the expression, for example "
            "(3+5)*2."
        )

    def guesses(self) -> tuple[str, ...]:
        """All numbers added, and all but the last: what a player writes who does not calculate."""
        numerals = [str(number) for number in self._task.numbers]
        return ("+".join(numerals), "+".join(numerals[:-1]))

    def task_key(self) -> str:
        """The numbers, which are always shown in rising order, and the target."""
        return hash_task(self.spec.id, self._task.numbers, self._task.target)

    @property
    def num_tasks(self) -> int | None:
        """The different tasks of the file; unknown for drawn ones."""
        if self._tasks is None:
            return None
        return len({(task.numbers, task.target) for task in self._tasks})

    @property
    def _numbers(self) -> str:
        return ", ".join(map(str, self._task.numbers))


@lru_cache(maxsize=1024)  # siblings begin with the same task
def draw_task(config: CountdownConfig, seed: int) -> CountdownTask:
    """Numbers and a target that an expression of all of them reaches."""
    rng = np.random.default_rng(seed)
    operations = sorted(set(config.operations))
    lows, ends = _draw_ranges(config.numbers, config.max_number, len(operations))
    for _ in range(_DRAWS):
        draw = rng.integers(lows, ends).tolist()
        numbers, picks = draw[: config.numbers], iter(draw[config.numbers :])
        values: list[_Valued] = [(n, str(n)) for n in numbers]
        while len(values) > 1:
            left, right = values.pop(next(picks)), values.pop(next(picks))
            symbol = operations[next(picks)]
            values.append(_join("+" if right[0] == 0 else symbol, left, right))
        target, solution = values[0]
        is_wanted = target.denominator == 1 and 1 <= target <= config.max_target
        is_sum = len(numbers) >= _SUMLESS_FROM and target == sum(numbers)
        if is_wanted and target not in numbers and not is_sum:
            return CountdownTask(
                numbers=tuple(sorted(numbers)), target=int(target), solution=_bare(solution)
            )
    raise EnvParamsError(
        f"countdown found no task with a target up to {config.max_target}: raise max_target or "
        "lower max_number"
    )


def _draw_ranges(numbers: int, max_number: int, num_operations: int) -> tuple[list[int], list[int]]:
    """The lowest value of each draw of an attempt, and the end of its range: the numbers, then for
    each join the places of both operands and the operation."""
    ends = [max_number + 1] * numbers
    for left in range(numbers, 1, -1):
        ends += [left, left - 1, num_operations]
    return [1] * numbers + [0] * (len(ends) - numbers), ends


def read_tasks(path: str) -> tuple[CountdownTask, ...]:
    """The tasks of a file that have a solution.

    Raises:
        EnvUnavailableError: the file cannot be read, or none of its rows is a task.
    """
    what = f"task of 2 to {MAX_NUMBERS} whole numbers that reach the target"
    return read_items(path, ("nums", "target"), _task_of, what)


def find_expression(numbers: tuple[int, ...], target: int) -> str | None:
    """An expression of all numbers with the target's value; None if there is none.

    Two values are joined in every way until one is left: some thousand ways for four numbers.
    """
    return _search([(n, str(n)) for n in numbers], target, set())


def _read(text: str) -> tuple[Fraction | None, str]:
    """The value of an expression of whole numbers; where it has none, why."""
    if "." in text:
        return None, "not of whole numbers"
    try:
        return calculate(text), ""
    except CalculationError as error:
        return None, str(error)


def _task_of(row: Row) -> CountdownTask | None:
    numbers, target = row["nums"], row["target"]
    if not isinstance(numbers, list) or not 2 <= len(numbers) <= MAX_NUMBERS:
        return None
    if any(type(n) is not int or not 0 <= n <= 9999 for n in [*numbers, target]):
        return None
    ordered = tuple(sorted(numbers))
    solution = find_expression(ordered, target)
    if solution is None:
        return None
    return CountdownTask(numbers=ordered, target=target, solution=solution)


def _search(values: list[_Valued], target: int, seen: set[tuple[_Value, ...]]) -> str | None:
    if len(values) == 1:
        return _bare(values[0][1]) if values[0][0] == target else None
    key = tuple(sorted(value for value, _ in values))
    if key in seen:
        return None
    seen.add(key)
    for i in range(len(values)):
        for j in range(i + 1, len(values)):
            rest = [pair for index, pair in enumerate(values) if index not in (i, j)]
            for joined in _joined(values[i], values[j]):
                expression = _search([*rest, joined], target, seen)
                if expression is not None:
                    return expression
    return None


def _joined(left_operand: _Valued, other: _Valued) -> Iterator[_Valued]:
    yield _join("+", left_operand, other)
    yield _join("*", left_operand, other)
    for left, right in ((left_operand, other), (other, left_operand)):
        yield _join("-", left, right)
        if right[0] != 0:
            yield _join("/", left, right)


def _join(symbol: str, left: _Valued, right: _Valued) -> _Valued:
    return _APPLY[symbol](left[0], right[0]), f"({left[1]}{symbol}{right[1]})"


def _bare(expression: str) -> str:
    """Without the outermost brackets, which every joined expression has."""
    return expression.removeprefix("(").removesuffix(")")
