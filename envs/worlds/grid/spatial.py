"""Spatial: look around a room, then answer where things stand to each other and to you."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvSpec, Observation, StepResult, hash_task, normalise
from ...params import require, require_within
from ..task_env import TaskEnv, one_of, some_of
from .geometry import Position, cells_of, point

Question = Literal["direction", "distance", "position", "egocentric", "perspective"]

_QUESTIONS: dict[Question, str] = {
    "direction": "In which direction is the {0} from the {1}?",
    "distance": "How many steps is it from the {0} to the {1}?",
    "position": "In which row and column is the {0}?",
    "egocentric": "On which side of you is the {0}, as you stand now?",
    "perspective": "You stand at the {0} and face the {1}: on which side is the {2}?",
}
MOVE_REWARD = -0.1
RIGHT_REWARD = 10.0
WRONG_REWARD = -1.0
_THINGS = ("lamp", "chair", "table", "plant", "clock", "piano", "mirror", "shelf")
_HEADINGS = ("north", "east", "south", "west")
_AHEAD: tuple[Position, ...] = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""(row change, column change) of a step in each heading."""
_COMPASS = (
    "north", "north-east", "east", "south-east", "south", "south-west", "west", "north-west",
)  # fmt: skip
_SIDES = (
    "ahead", "ahead-right", "right", "behind-right", "behind", "behind-left", "left", "ahead-left",
)  # fmt: skip
_SIGNS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
"""Of what lies (ahead, to the right) on each of the eight sides."""
_View = tuple[tuple[str, int, int], ...]
"""(thing, steps ahead, steps to the right) of all that a look shows."""
_OFFERED_PLACES = 8
_MOVES = ("look", "forward", "turn left", "turn right")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpatialConfig:
    """Room and questions of `spatial`.

    `size`: cells on a side, 4 to 16. `things`: objects in the room, 2 to 8. `questions`: the kinds
    to draw from; `perspective` needs three things.
    """

    size: int = 10
    things: int = 3
    questions: tuple[Question, ...] = get_args(Question)

    def __post_init__(self) -> None:
        require_within(self, size=(4, 16), things=(2, len(_THINGS)))
        require(bool(self.questions), "questions is empty, but must name at least one kind")
        require(
            len(set(self.questions)) == len(self.questions),
            f"questions is {list(self.questions)}, but must name each kind once",
        )
        require(
            self.things >= 3 or "perspective" not in self.questions,
            f"things is {self.things}, but questions of perspective need 3",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One task: where everything stands, and what is asked of the things `asked`, in order."""

    things: tuple[tuple[str, Position], ...]
    start: Position
    heading: int
    question: Question
    asked: tuple[str, ...]
    offered: tuple[Position, ...]
    """The cells to choose from, where the question asks for one."""


class Spatial(TaskEnv[SpatialConfig]):
    """A room seen in parts, and a question about the whole.

    Description:
        Things stand in a square room; the player stands among them and faces north, east, south or
        west. Looking shows the things in the quarter of the room ahead (a thing as far to the side
        as ahead is still seen; nothing hides anything). One question is asked from the start on.
        Allocentric questions ask about the room, egocentric ones about how a thing lies to somebody
        who stands and faces somewhere:
        `direction`: the compass direction of one thing from another. North means exactly north;
        north-east is everything between north and east.
        `distance`: the steps between two things along rows and columns.
        `position`: the row and column of a thing, one of eight.
        `egocentric`: on which side of the player, as she stands now, a thing lies. Ahead means
        exactly ahead; ahead-right is everything between ahead and right.
        `perspective`: on which side the third thing lies for somebody who stands at the first and
        faces the second.
    Observation:
        Row, column and heading of the player, what the last look showed (as so many steps ahead and
        to the side), the question, and the answers to choose from.
    Actions:
        look, forward, turn left, turn right, and "answer" with one of the answers offered. A step
        against the wall or onto a thing is valid and leaves the player in place.
    Rewards:
        -0.1 for look, forward and a turn; +10 for the right answer, -1 for a wrong one.
    Episode end:
        An answer, right or wrong.
    Success:
        The answer was right.
    Seeds:
        `seed` draws the room, the start and the question; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = Spatial(SpatialConfig(questions=("direction",)))
        >>> first = world.reset(seed=2, noise_seed=0)
        >>> [round(world.step(action).reward, 1) for action in world.solve()][-2:]
        [-0.1, 10.0]
    """

    spec = EnvSpec(
        id="spatial",
        config_type=SpatialConfig,
        max_turns=12,
        description="Look around a room, then say where things stand.",
    )
    is_over = is_solved = False

    def __init__(self, config: SpatialConfig | None = None) -> None:
        super().__init__(config)
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        self._room = draw_room(self._config, seed)
        self._place, self._heading = self._room.start, self._room.heading
        self._view: _View | None = None
        self._seen: set[str] = set()
        self.is_over = self.is_solved = False

    def step(self, action: str) -> StepResult:
        word = " ".join(normalise(action).split())
        if self.is_over or word not in self.legal_actions():
            return self.refused(action)
        before = (self._place, self._heading, self._view)
        if word in _MOVES:
            self._move(word)
            is_effective = (self._place, self._heading, self._view) != before
            return self.result(MOVE_REWARD, is_effective=is_effective)
        self.is_over, self.is_solved = True, word == f"answer {self._answer()}"
        return self.result(RIGHT_REWARD if self.is_solved else WRONG_REWARD)

    def instructions(self) -> str:
        return (
            "You are in a room and face north, east, south or west. Look, walk and turn until you "
            "can answer the question, then answer it; you have one answer. Positions are (row, "
            "column), from 0 in the north-west. You see what lies in the quarter of the room ahead "
            f"of you. Actions: {', '.join(_MOVES)}, or answer and one of the answers offered."
        )

    def plan(self) -> list[str]:
        """Looks round until all things of the question were seen, then answers.

        It knows where to find nothing: it begins with what lies ahead and turns right.
        """
        plan: list[str] = []
        heading, seen = self._heading, set(self._seen)
        while not set(self._room.asked) <= seen:
            if not plan and self._view is not None:
                plan.append("turn right")  # what lies ahead is known
                heading = (heading + 1) % 4
            plan.append("look")
            seen |= {thing for thing, _, _ in self._visible(heading)}
            if not set(self._room.asked) <= seen:
                plan.append("turn right")
                heading = (heading + 1) % 4
        return [*plan, f"answer {self._answer(heading)}"]

    def legal_actions(self) -> tuple[str, ...]:
        return (*_MOVES, *(f"answer {choice}" for choice in self._choices()))

    def task_key(self) -> str:
        room = self._room
        return hash_task(
            self.spec.id,
            self._config.size,
            sorted(room.things),
            room.start,
            room.heading,
            room.question,
            room.asked,
            room.offered,
        )

    def _move(self, word: str) -> None:
        if word == "look":
            self._view = self._visible(self._heading)
            self._seen |= {thing for thing, _, _ in self._view}
            return
        if word == "forward":
            down, right = _AHEAD[self._heading]
            there = (self._place[0] + down, self._place[1] + right)
            is_inside = all(0 <= index < self._config.size for index in there)
            if not is_inside or there in dict(self._room.things).values():
                return
            self._place = there
        else:
            self._heading = (self._heading + (1 if word == "turn right" else -1)) % 4
        self._view = None

    def _visible(self, heading: int) -> _View:
        """What a look in this heading shows."""
        seen = []
        for thing, position in self._room.things:
            ahead, right = _turned(_from(self._place, position), _AHEAD[heading])
            if ahead > 0 and abs(right) <= ahead:
                seen.append((thing, ahead, right))
        return tuple(seen)

    def _answer(self, heading: int | None = None) -> str:
        """The right answer, for a player who faces `heading` (as she does now by default)."""
        room, places = self._room, dict(self._room.things)
        asked = [places[thing] for thing in room.asked]
        if room.question == "direction":
            down, right = _from(asked[1], asked[0])
            return _COMPASS[_eighth(-down, right)]
        if room.question == "distance":
            return str(sum(map(abs, _from(asked[0], asked[1]))))
        if room.question == "position":
            return point(asked[0])
        if room.question == "egocentric":
            facing = _AHEAD[self._heading if heading is None else heading]
            return _SIDES[_eighth(*_turned(_from(self._place, asked[0]), facing))]
        facing = _from(asked[0], asked[1])
        return _SIDES[_eighth(*_turned(_from(asked[0], asked[2]), facing))]

    def _choices(self) -> tuple[str, ...]:
        question, size = self._room.question, self._config.size
        if question == "direction":
            return _COMPASS
        if question == "distance":
            return tuple(str(steps) for steps in range(1, 2 * size - 1))
        if question == "position":
            return tuple(map(point, self._room.offered))
        return _SIDES

    def info(self) -> dict[str, float]:
        return {"seen": float(len(self._seen))}

    def observe(self) -> Observation:
        size = self._config.size
        lines = [f"You are at {point(self._place)} and face {_HEADINGS[self._heading]}."]
        if self.is_over:
            lines.append("Right." if self.is_solved else "Wrong.")
        elif self._view is not None:
            lines.append(f"You see {_listed(self._view)}.")
        answers = ", ".join(f"answer {choice}" for choice in self._choices())
        question = _QUESTIONS[self._room.question].format(*self._room.asked)
        lines += [question, f"Answers: {answers}."]
        cells = ["_" * size] * size
        facing = (f"facing {_HEADINGS[self._heading]}", self._place)
        player = [("player", self._place), facing]
        frame = grid_frame(cells, {"_": "floor"}, [*self._room.things, *player])
        return Observation(text="\n".join(lines), frame=frame)


def _from(start: Position, end: Position) -> Position:
    return end[0] - start[0], end[1] - start[1]


def _turned(way: Position, facing: Position) -> tuple[int, int]:
    """(ahead, right) of a way (down, right on the map) for somebody who faces `facing`.

    In units of the length of `facing`: exact, and steps where that is 1.
    """
    (down, right), (facing_down, facing_right) = way, facing
    return (
        down * facing_down + right * facing_right,
        right * -facing_down + down * facing_right,
    )


def _eighth(ahead: int, right: int) -> int:
    """Which of the eight sides, clockwise from ahead: the even ones are exact."""
    return _SIGNS.index((int(np.sign(ahead)), int(np.sign(right))))


def _listed(view: _View) -> str:
    if not view:
        return "nothing"
    parts = []
    for thing, ahead, right in view:
        side = f" and {abs(right)} {'right' if right > 0 else 'left'}" if right else ""
        parts.append(f"the {thing} {ahead} ahead{side}")
    return "; ".join(parts)


@lru_cache(maxsize=1024)
def draw_room(config: SpatialConfig, seed: int) -> Room:
    rng = np.random.default_rng(seed)
    cells = cells_of((config.size, config.size))
    start, *places = some_of(rng, cells, config.things + 1)
    names = sorted(some_of(rng, _THINGS, config.things))
    question = one_of(rng, config.questions)
    count = {"direction": 2, "distance": 2, "perspective": 3}.get(question, 1)
    asked = tuple(some_of(rng, names, count))
    offered: tuple[Position, ...] = ()
    if question == "position":
        right = places[names.index(asked[0])]
        others = [cell for cell in cells if cell != right]
        offered = tuple(sorted([right, *some_of(rng, others, _OFFERED_PLACES - 1)]))
    return Room(
        things=tuple(zip(names, places, strict=True)),
        start=start,
        heading=int(rng.integers(4)),
        question=question,
        asked=asked,
        offered=offered,
    )
