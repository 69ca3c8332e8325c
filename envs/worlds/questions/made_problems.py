"""Word problems with whole-number answers, drawn from sentences of our own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

import numpy as np

from ...params import require
from ..task_env import one_of, some_of

_PEOPLE = (
    "Ada", "Ben", "Carla", "Deniz", "Emil", "Fatima", "Goran", "Hana", "Ivo", "Jun", "Kofi",
    "Lena", "Mila", "Noor", "Otto", "Priya", "Quinn", "Rosa", "Samir", "Tuva",
)  # fmt: skip
_THINGS = (
    "apples", "books", "buttons", "cards", "coins", "eggs", "marbles", "nails", "oranges",
    "pencils", "plums", "shells", "stamps", "stickers", "tickets", "tiles",
)  # fmt: skip
Problem = tuple[str, int]


Kind = Literal["gift", "boxes", "shares", "cost", "walk", "ages"]
ALL_KINDS: tuple[Kind, ...] = get_args(Kind)


def check_kinds(kinds: Sequence[Kind], data: str | None) -> None:
    """Raise `EnvParamsError` unless `kinds` can be drawn from, and there is no file to read."""
    require(
        0 < len(kinds) == len(set(kinds)),
        f"kinds is {list(kinds)}, but must name different kinds of problems, at least one",
    )
    require(
        data is None or tuple(kinds) == ALL_KINDS,
        "kinds chooses among the made problems: leave it out where data names a file",
    )


def draw_problem(rng: np.random.Generator, kinds: Sequence[Kind] = ALL_KINDS) -> Problem:
    """A question of one of the kinds, and its answer."""
    return _KINDS[one_of(rng, kinds)](rng)


def _gift(rng: np.random.Generator) -> Problem:
    (giver, other), things = some_of(rng, _PEOPLE, 2), one_of(rng, _THINGS)
    has, gives = _number(rng, 20, 90), _number(rng, 2, 19)
    more = _number(rng, 2, 40)
    return (
        f"{giver} has {has} {things}. {giver} gives {gives} of them to {other} and then finds "
        f"{more} more. How many {things} does {giver} have now?",
        has - gives + more,
    )


def _boxes(rng: np.random.Generator) -> Problem:
    (person, _), things = some_of(rng, _PEOPLE, 2), one_of(rng, _THINGS)
    boxes, each, left = _number(rng, 2, 12), _number(rng, 3, 15), _number(rng, 2, 20)
    return (
        f"{person} fills {boxes} boxes with {each} {things} each and has {left} {things} left "
        f"over. How many {things} are there in all?",
        boxes * each + left,
    )


def _shares(rng: np.random.Generator) -> Problem:
    things = one_of(rng, _THINGS)
    friends, each = _number(rng, 2, 12), _number(rng, 2, 15)
    eaten = _number(rng, 2, 9)
    return (
        f"A bag holds {friends * each + eaten} {things}. {eaten} of them get lost, and {friends} "
        f"friends share the rest equally. How many {things} does each friend get?",
        each,
    )


def _cost(rng: np.random.Generator) -> Problem:
    (person, _), (first, second) = some_of(rng, _PEOPLE, 2), some_of(rng, _THINGS, 2)
    counts = _number(rng, 2, 9), _number(rng, 2, 9)
    prices = _number(rng, 2, 12), _number(rng, 2, 12)
    total = counts[0] * prices[0] + counts[1] * prices[1]
    paid = total + _number(rng, 1, 30)
    return (
        f"{person} buys {counts[0]} {first} at {prices[0]} euros each and {counts[1]} {second} at "
        f"{prices[1]} euros each, and pays with {paid} euros. How many euros does {person} get "
        "back?",
        paid - total,
    )


def _walk(rng: np.random.Generator) -> Problem:
    (person, _), days = some_of(rng, _PEOPLE, 2), _number(rng, 3, 9)
    first, more = _number(rng, 2, 12), _number(rng, 2, 5)
    return (
        f"{person} walks {first} kilometres on the first day and on every later day {more} "
        f"kilometres more than on the day before. How many kilometres does {person} walk in "
        f"{days} days?",
        days * first + more * days * (days - 1) // 2,
    )


def _ages(rng: np.random.Generator) -> Problem:
    older, other = some_of(rng, _PEOPLE, 2)
    age, times, years = _number(rng, 3, 14), _number(rng, 2, 5), _number(rng, 2, 12)
    return (
        f"{older} is {age} years old. {other} is {times} times as old. How old will {other} be in "
        f"{years} years?",
        age * times + years,
    )


_KINDS: Mapping[Kind, Callable[[np.random.Generator], Problem]] = {
    "gift": _gift,
    "boxes": _boxes,
    "shares": _shares,
    "cost": _cost,
    "walk": _walk,
    "ages": _ages,
}


def _number(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high + 1))
