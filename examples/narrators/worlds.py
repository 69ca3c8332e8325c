"""Reasoning about lakes, boxes, arms of a bandit and price lists."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from echoscope.core.warm_start.narrators import PlainNarrator, pick
from echoscope.envs.worlds.grid.geometry import MOVES, Position, offset_words, shift
from echoscope.text.tool_calls import read_answer, read_call

OPPOSITE: Mapping[str, str] = MappingProxyType(
    {"up": "down", "down": "up", "left": "right", "right": "left"}
)


STEADY = frozenset(
    {
        "Accountant", "Archivist", "Auditor", "Baker", "Carpenter", "Clerk", "Dentist", "Farmer",
        "Gardener", "Janitor", "Judge", "Librarian", "Notary", "Nurse", "Pharmacist", "Plumber",
        "Postman", "Shepherd", "Tailor", "Teacher",
    }
)  # fmt: skip
BOLD = frozenset(
    {
        "Acrobat", "Adventurer", "Astronaut", "Daredevil", "Diver", "Explorer", "Founder",
        "Gambler", "Inventor", "Matador", "Outlaw", "Pirate", "Prospector", "Racer", "Raider",
        "Rebel", "Smuggler", "Speculator", "Spy", "Stuntman",
    }
)  # fmt: skip


_NEAR = re.compile(r"Near: ((?:[a-z]+ [a-z]+, ){3}[a-z]+ [a-z]+)\.")
_GOAL = re.compile(r"Goal ([0-9a-z ]+)\.")


class FrozenLakeNarrator(PlainNarrator):
    """Reads the relative observation: where the goal lies, and what is next to the player."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        match = _GOAL.search(observation)
        if match is None or not _near(observation):
            return super().careful(observation, plan, rng)
        where, move = match.group(1), plan[0]
        near = _near(observation)
        directions = [word for word in where.split(" ") if word in MOVES]
        # What stands in the way is said before the choice, so that a policy which has learned to
        # say it has learned to look.
        kinds = ", ".join(f"{word} is {near[word]}" for word in directions)
        phrases: tuple[str, ...]
        if move in directions:
            phrases = (
                f"The goal is {where}. {kinds}. I go {move}.",
                f"I need to get {where}: {kinds}. So {move}.",
                f"Goal {where} and {kinds}. That way {move}.",
                f"Looking {where}: {kinds}. I choose {move}.",
            )
        else:
            phrases = (
                f"The goal is {where}. {kinds}. I go around: {move}.",
                f"I need to get {where}: {kinds}. Around by {move}.",
            )
        return pick(phrases, rng), move


class BanditNarrator(PlainNarrator):
    """Names the character of both arms, then trusts one kind or the other.

    Which kind pays more is not in the names, so even careful thinking picks the better arm only
    every second time: that is left for reward to teach.
    """

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        arms = [arm for arm in re.findall(r"[A-Z][a-z]+", observation) if arm in BOLD | STEADY]
        if len(arms) != 2 or arms[0] in BOLD or arms[1] in STEADY:
            arms.reverse()
        if len(arms) != 2 or arms[0] not in STEADY or arms[1] not in BOLD:
            return super().careful(observation, plan, rng)
        steady, bold = arms
        is_bold = bool(rng.integers(2))
        chosen = bold if is_bold else steady
        if is_bold:
            phrases = (
                f"{steady} is steady and {bold} is bold. I want the big prize.",
                f"{bold} sounds bold. I take the risk.",
                f"A bold {bold} may pay a lot more than a steady {steady}.",
            )
        else:
            phrases = (
                f"{steady} is steady and {bold} is bold. I want to be safe.",
                f"{steady} sounds steady. I play it safe.",
                f"A steady {steady} pays for sure, a bold {bold} may not.",
            )
        return pick(phrases, rng), chosen


class PriceListNarrator(PlainNarrator):
    """Says what is still missing: a price, the sum, or nothing."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        action = plan[0]
        call, answer = read_call(action), read_answer(action)
        phrases: tuple[str, ...] = ()
        if call is not None and "item" in call[1]:
            item = call[1]["item"]
            phrases = (f"I need the price of {item}.", f"What does one {item} cost? I look it up.")
        elif call is not None and "expression" in call[1]:
            expression = call[1]["expression"]
            phrases = (
                f"I know all prices: {expression}.",
                f"Pieces times price, added up: {expression}.",
            )
        elif answer is not None:
            phrases = (f"That makes {answer}.", f"The sum is {answer}, so I answer.")
        return (pick(phrases, rng), action) if phrases else super().careful(observation, plan, rng)

    def careless(self, action: str, rng: np.random.Generator) -> str:
        return pick(("I am not sure. Let me try.", "No idea. I guess."), rng)


_BOX = re.compile(r"Box ([0-9a-z ]+)\. Target (?:under box|([0-9a-z ]+) of box)\.")


class SokobanNarrator(PlainNarrator):
    """One box, relative observation: which way it must go, where to stand for that, how to go."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        match = _BOX.search(observation)
        if match is None or match.group(2) is None or not _near(observation):
            return super().careful(observation, plan, rng)
        box, where, move = parse_offset(match.group(1)), match.group(2), plan[0]
        push = first_push(box, plan)
        if push is None:
            return super().careful(observation, plan, rng)
        phrases: tuple[str, ...]
        if shift((0, 0), move) == box:
            phrases = (
                f"The box must go {push}. It is {move} of me, so I push {move}.",
                f"Target {where} of the box and the box is {move} of me. Push {move}.",
                f"I stand right behind the box, it must go {push}. I push.",
            )
        else:
            behind = OPPOSITE[push]
            stand = offset_words((0, 0), shift(box, behind))
            near = _near(observation)
            phrases = (
                f"The box must go {push}, so I stand {behind} of it. {match.group(1)} and "
                f"1 {behind} is {stand}. {move} is {near[move]}, so I go {move}.",
                f"Target {where} of the box: push {push}. {match.group(1)} and 1 {behind} makes "
                f"{stand}. {move} is {near[move]}: go {move}.",
            )
        return pick(phrases, rng), move


def _near(observation: str) -> dict[str, str]:
    """`"Near: up ice, down wall."` as direction to kind; empty where nothing is said."""
    match = _NEAR.search(observation)
    return dict(part.split(" ") for part in match.group(1).split(", ")) if match else {}


def parse_offset(text: str) -> Position:
    """`"2 up 1 right"` as (row change, column change): (-2, 1). `"here"` is (0, 0)."""
    row = col = 0
    for count, direction in re.findall(r"(\d+) (up|down|left|right)", text):
        step = MOVES[direction]
        row, col = row + int(count) * step[0], col + int(count) * step[1]
    return row, col


def first_push(box: Position, plan: Sequence[str]) -> str | None:
    """The direction of the first move of `plan` that walks into the box, the player at (0, 0)."""
    position = (0, 0)
    for move in plan:
        position = shift(position, move)
        if position == box:
            return move
    return None
