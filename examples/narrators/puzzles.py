"""Careful reasoning about puzzles: numbers, cubes, Sudoku cells and sliding tiles.

Each narrator works its reasoning out from the observation alone, one small step after another: what
a policy of a million parameters can learn to repeat on a task that it has not seen.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from echoscope.core.warm_start.narrators import PlainNarrator, pick
from echoscope.envs.worlds.tools.calculator import calculate, number_text

_COUNTDOWN = re.compile(r"Numbers: ([0-9, ]+)\. Target: (\d+)\.")
_MOST_TRIALS = 8


class CountdownNarrator(PlainNarrator):
    """Tries one expression after another, says its value, and stops at the target."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        match = _COUNTDOWN.search(observation)
        if match is None:
            return super().careful(observation, plan, rng)
        numbers = [int(number) for number in match.group(1).split(", ")]
        trials: list[tuple[str, str]] = []
        for expression in itertools.islice(simple_expressions(numbers), _MOST_TRIALS):
            trials.append((expression, number_text(calculate(expression))))
            if trials[-1][1] == match.group(2):
                break
        else:
            return super().careful(observation, plan, rng)
        expression = trials[-1][0]
        told = (
            ", ".join(f"{trial} is {value}" for trial, value in trials) + ", yes.",
            " ".join(f"{trial} makes {value}." for trial, value in trials)
            + f" That is {match.group(2)}.",
        )
        return pick(told, rng), expression


def simple_expressions(numbers: Sequence[int]) -> Iterator[str]:
    """Expressions of all numbers without brackets, the frequent ones first.

    Of two numbers: sum, difference, product, quotient. Of more: the positive sums in which no
    number, one number, or all but the largest count as negative.
    """
    *smaller, largest = ordered = sorted(numbers)
    if len(smaller) == 1:
        yield from (
            f"{smaller[0]}+{largest}",
            f"{largest}-{smaller[0]}",
            f"{smaller[0]}*{largest}",
            f"{largest}/{smaller[0]}",
        )
        return
    places = range(len(ordered))
    for negatives in ((), *((position,) for position in places), tuple(places[:-1])):
        added = [number for position, number in enumerate(ordered) if position not in negatives]
        taken = [ordered[position] for position in negatives]
        if sum(added) > sum(taken):
            yield "+".join(map(str, added)) + "".join(f"-{number}" for number in taken)


_FACE = re.compile(r"^([A-Z][a-z]+) \(([A-Z])\): ([A-Z]{2}) ([A-Z]{2})$", re.MULTILINE)


class RubiksNarrator(PlainNarrator):
    """Names the faces of one colour and how the front looks, then the turn."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        faces = {name: (upper, lower) for name, _, upper, lower in _FACE.findall(observation)}
        if len(faces) != 6:
            return super().careful(observation, plan, rng)
        whole = [name for name, rows in faces.items() if len(set("".join(rows))) == 1]
        done = " and ".join(whole) or "none"
        looks = f"Front shows {' '.join(faces['Front'])}, Right {' '.join(faces['Right'])}"
        phrases = (
            f"Done: {done}. {looks}. So {plan[0]}.",
            f"{looks}. Done: {done}. I turn {plan[0]}.",
        )
        return pick(phrases, rng), plan[0]


_OPEN_CELL = re.compile(
    r"(?P<state>Empty|\d in conflict at) (?P<place>\d,\d): row (?P<row>[0-9 ]+|none), "
    r"column (?P<column>[0-9 ]+|none), box (?P<box>[0-9 ]+|none)\."
)


class SudokuNarrator(PlainNarrator):
    """4x4 boards, relative observation: a cell for which the cells around leave one number."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        digit_of = {action.rpartition(",")[0]: action.rpartition(",")[2] for action in plan}
        for match in _OPEN_CELL.finditer(observation):
            cell = match["place"]
            around = sorted(set(re.findall(r"\d", match["row"] + match["column"] + match["box"])))
            if len(around) != 3 or digit_of.get(cell) in (None, *around):
                continue
            number, seen = digit_of[cell], " ".join(around)
            action = f"{cell},{number}"
            if match["state"] == "Empty":
                phrases = (
                    f"{cell} sees {seen}. Missing is {number}.",
                    f"Around {cell} are {seen}, so it is {number}.",
                )
            else:
                phrases = (
                    f"{cell} is wrong. It sees {seen}. Missing is {number}.",
                    f"Wrong at {cell}. Around are {seen}, so it is {number}.",
                )
            return pick(phrases, rng), action
        return super().careful(observation, plan, rng)


_PROSPECTS = re.compile(r"up (\d+|none), right (\d+|none), down (\d+|none), left (\d+|none)\.")


class Game2048Narrator(PlainNarrator):
    """Relative observation: compares the points of the moves and takes the most."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        match = _PROSPECTS.search(observation)
        if match is None:
            return super().careful(observation, plan, rng)
        points = {
            move: int(word)
            for move, word in zip(("up", "right", "down", "left"), match.groups(), strict=True)
            if word != "none"
        }
        most = max(points.values())
        if most == 0:
            move = next(iter(points))
            phrases = (f"Nothing merges. I go {move}.", f"No points now, so {move}.")
            return pick(phrases, rng), move
        best = [move for move, value in points.items() if value == most]
        move = best[0]
        phrases = (
            f"The most is {most}: {move}.",
            f"{move} merges for {most}. I go {move}.",
        )
        return pick(phrases, rng), move


class WordProblemNarrator(PlainNarrator):
    """Calculates a made word problem of `static_qa` step by step."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        steps = steps_of(observation)
        if steps is None or steps[-1].rpartition("=")[2] != plan[0]:
            return super().careful(observation, plan, rng)
        calculated = ", ".join(steps)
        phrases = (
            f"{calculated}. So {plan[0]}.",
            f"I calculate {calculated}.",
        )
        return pick(phrases, rng), plan[0]


_PROBLEMS: Mapping[str, tuple[str, ...]] = {
    r"has (\d+) \w+\. \w+ gives (\d+) of them to \w+ and then finds (\d+)": ("{0}-{1}", "{a}+{2}"),
    r"fills (\d+) boxes with (\d+) \w+ each and has (\d+)": ("{0}*{1}", "{a}+{2}"),
    r"holds (\d+) \w+\. (\d+) of them get lost, and (\d+) friends": ("{0}-{1}", "{a}/{2}"),
    r"is (\d+) years old\. \w+ is (\d+) times as old\. How old will \w+ be in (\d+)": (
        "{0}*{1}",
        "{a}+{2}",
    ),
}
"""What a made problem says -> its calculation; `{a}` is the value of the step before."""


def steps_of(question: str) -> list[str] | None:
    """`["54-7=47", "47+12=59"]` for a problem of two steps; None for another one."""
    for pattern, steps in _PROBLEMS.items():
        match = re.search(pattern, question)
        if match is None:
            continue
        out: list[str] = []
        for step in steps:
            before = out[-1].rpartition("=")[2] if out else ""
            expression = step.format(*match.groups(), a=before)
            out.append(f"{expression}={number_text(calculate(expression))}")
        return out
    return None
