"""Rubiks: turn a scrambled 2x2 cube back.

The cube is a permutation of its 24 stickers. A sticker is named by the corner it sits on and the
side it looks to. Positions are made from the geometry of a turn, so that no table has to be
believed. x points to the right face, y up, z to the front. Lengths count quarter turns.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from echoscope.text.pictures import grid_frame

from ...base import EnvSpec, Observation, StepResult, hash_task
from ...params import require_within
from ..task_env import TaskEnv

Vector = tuple[int, int, int]
State = tuple[int, ...]
"""The colour, 0 to 5, at each of the 24 places."""
Permutation = tuple[int, ...]
"""Place -> place that its sticker comes from."""

FACES = "UDLRFB"
_NORMALS: dict[str, Vector] = {
    "U": (0, 1, 0), "D": (0, -1, 0), "L": (-1, 0, 0),
    "R": (1, 0, 0), "F": (0, 0, 1), "B": (0, 0, -1),
}  # fmt: skip
_ROWS: dict[str, tuple[Vector, Vector]] = {
    # (to the right, down) as one looks at the face from outside
    "U": ((1, 0, 0), (0, 0, 1)), "D": ((1, 0, 0), (0, 0, -1)), "L": ((0, 0, 1), (0, -1, 0)),
    "R": ((0, 0, -1), (0, -1, 0)), "F": ((1, 0, 0), (0, -1, 0)), "B": ((-1, 0, 0), (0, -1, 0)),
}  # fmt: skip


def _clockwise(vector: Vector, axis: Vector) -> Vector:
    """Turned by a quarter, clockwise as one looks at the end of `axis`."""
    x, y, z = (np.dot(vector, axis) * np.array(axis) + np.cross(vector, axis)).tolist()
    return x, y, z


def _place(face: str, row: int, col: int) -> tuple[Vector, Vector]:
    """(corner, normal) of a sticker of a face."""
    normal, (right, down) = np.array(_NORMALS[face]), np.array(_ROWS[face])
    x, y, z = (normal + (2 * col - 1) * right + (2 * row - 1) * down).tolist()
    return (x, y, z), _NORMALS[face]


PLACES = [_place(face, row, col) for face in FACES for row in range(2) for col in range(2)]
"""Place i is row (i % 4) // 2, column i % 2 of face `FACES[i // 4]`."""
_INDEX = {sticker: i for i, sticker in enumerate(PLACES)}
SOLVED: State = tuple(i // 4 for i in range(24))


def _turn(axis: Vector, *, whole: bool) -> Permutation:
    """A quarter turn, clockwise, of one face or of the whole cube."""
    source = list(range(24))
    for i, (corner, normal) in enumerate(PLACES):
        if whole or np.dot(corner, axis) == 1:
            source[_INDEX[(_clockwise(corner, axis), _clockwise(normal, axis))]] = i
    return tuple(source)


def _inverse(permutation: Permutation) -> Permutation:
    return tuple(np.argsort(permutation).tolist())


MOVES: dict[str, Permutation] = {
    name: permutation
    for face in FACES
    for turn in [_turn(_NORMALS[face], whole=False)]
    for name, permutation in ((face, turn), (f"{face}'", _inverse(turn)))
}
"""The twelve quarter turns."""


def apply(state: State, permutation: Permutation) -> State:
    """The colours after a permutation."""
    return tuple(map(state.__getitem__, permutation))


def is_solved(state: State) -> bool:
    """Every face has one colour, however the whole cube is held."""
    return all(len(set(state[i : i + 4])) == 1 for i in range(0, 24, 4))


def _layers(start: State, turns: Sequence[Permutation]) -> Iterator[dict[State, str]]:
    """The states that are 0, 1, 2, ... turns away, each with the turns that lead there: digits, the
    places of `turns`."""
    seen, layer = {start}, {start: ""}
    while layer:
        yield layer
        following = {}
        for state, path in layer.items():
            for code, turn in enumerate(turns):
                after = apply(state, turn)
                if after not in seen:
                    seen.add(after)
                    following[after] = path + str(code)
        layer = following


_UNTURNED: Permutation = tuple(range(24))
_WHOLE_TURNS = [_turn(_NORMALS[face], whole=True) for face in "URF"]
_ROTATIONS = sorted(held for layer in _layers(_UNTURNED, _WHOLE_TURNS) for held in layer)
"""The 24 ways to hold the cube."""
_FREE_MOVES = [name for name in MOVES if name[0] in "URF"]
"""They reach every state of a cube whose corner at the back, bottom, left stays where it is."""
_FIXED = [i for i, (corner, _) in enumerate(PLACES) if corner == (-1, -1, -1)]
_MEET = 7
"""Half of 14, the most quarter turns that any 2x2 cube needs."""


def solution(state: State) -> list[str]:
    """A shortest sequence of quarter turns that solves the cube.

    Raises:
        ValueError: no turns lead from this state to a solved one.
    """
    for rotation in _ROTATIONS:
        held = apply(state, rotation)
        if any(held[i] != SOLVED[i] for i in _FIXED):
            continue
        # Search from the state until it meets what has been searched from the solved cube.
        for layer in _near(held):
            met = [each for each in layer if each in _searched_from_solved()]
            if met:
                best = min(met, key=lambda each: len(_searched_from_solved()[each]))
                first = [_FREE_MOVES[int(code)] for code in layer[best]]
                # The way there backwards: the last turn undone first.
                back = reversed(_searched_from_solved()[best])
                second = [_undone(_FREE_MOVES[int(code)]) for code in back]
                return [_renamed(move, rotation) for move in (*first, *second)]
    raise ValueError("this is no state of a 2x2 cube: its corners cannot be turned into place")


def _near(start: State) -> Iterator[dict[State, str]]:
    """The layers within `_MEET` turns of a state."""
    return itertools.islice(_layers(start, [MOVES[move] for move in _FREE_MOVES]), _MEET + 1)


@lru_cache(maxsize=1)
def _searched_from_solved() -> dict[State, str]:
    """Every state within `_MEET` turns of the solved cube, with the turns that lead there."""
    return {state: path for layer in _near(SOLVED) for state, path in layer.items()}


def _undone(move: str) -> str:
    return move[0] if move.endswith("'") else f"{move}'"


def _renamed(move: str, rotation: Permutation) -> str:
    """What a turn of the cube as it is held now was called before it was held so."""
    there = apply(apply(rotation, MOVES[move]), _inverse(rotation))
    return next(name for name, turn in MOVES.items() if turn == there)


_COLOURS = "WYORGB"
"""Of the faces in the order of `FACES`, when the cube is solved."""
_NAMES = ("Up", "Down", "Left", "Right", "Front", "Back")
_LEGEND = {
    "W": "white", "Y": "yellow", "O": "orange", "R": "red", "G": "green", "B": "blue",
    " ": "nothing",
}  # fmt: skip
_MAX_DEPTH = 8
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u2032\u00b4`", "'"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RubiksConfig:
    """Difficulty of `rubiks`.

    `depth`: quarter turns of the shortest solution.
    """

    depth: int = 3

    def __post_init__(self) -> None:
        require_within(self, depth=(1, _MAX_DEPTH))


class Rubiks(TaskEnv[RubiksConfig]):
    """A scrambled 2x2 cube.

    Description:
        A cube of 2x2x2, whose shortest solution has exactly `depth` quarter turns.
    Observation:
        Six lines such as "Up (U): WO WO": the upper row of the face, then the lower one, as one
        looks at it from outside. The up face has the back at its top, the down face the front.
    Actions:
        U, D, L, R, F, B turn a face by a quarter, clockwise as one looks at it; U', D', L', R', F',
        B' turn it back. U2 is U twice.
    Rewards:
        1 when the cube is solved, else 0.
    Episode end:
        The cube is solved.
    Success:
        Every face has one colour, however the whole cube is held.
    Seeds:
        `seed` draws the scramble; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = Rubiks(RubiksConfig(depth=3))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(turn).reward for turn in world.solve()]
        [0.0, 0.0, 1.0]
    """

    spec = EnvSpec(
        id="rubiks",
        config_type=RubiksConfig,
        max_turns=20,
        max_actions_per_turn=4,
        description="Turn a scrambled 2x2 cube until every face has one colour.",
    )
    _first = _state = SOLVED

    def begin(self, seed: int, noise_seed: int) -> None:
        self._first = self._state = scramble(self._config.depth, seed)

    def step(self, action: str) -> StepResult:
        turn = _read_turn(action)
        if turn is None or self.is_over:
            return self.refused(action)
        self._state = apply(self._state, turn)
        return self.result(float(self.is_solved))

    def instructions(self) -> str:
        return (
            "Turn the 2x2 cube until every face has one colour. A letter turns a face by a quarter "
            "clockwise, a letter with ' turns it back. Each face is shown as its upper and its "
            f"lower row. Actions: {', '.join(MOVES)}."
        )

    def solve(self) -> list[str]:
        return solution(self._state)

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def task_key(self) -> str:
        return hash_task(self.spec.id, self._first)

    @property
    def is_solved(self) -> bool:
        return is_solved(self._state)

    def observe(self) -> Observation:
        letters = "".join(_COLOURS[colour] for colour in self._state)
        faces = {face: letters[4 * i : 4 * i + 4] for i, face in enumerate(FACES)}
        text = "\n".join(
            f"{name} ({face}): {faces[face][:2]} {faces[face][2:]}"
            for name, face in zip(_NAMES, FACES, strict=True)
        )
        halves = (slice(0, 2), slice(2, 4))
        net = [
            *(f"  {faces['U'][row]}    " for row in halves),
            *("".join(faces[face][row] for face in "LFRB") for row in halves),
            *(f"  {faces['D'][row]}    " for row in halves),
        ]
        return Observation(text=text, frame=grid_frame(net, _LEGEND, ()))


def _read_turn(action: str) -> Permutation | None:
    """What an action turns; None if it is no turn. Every apostrophe that people type will do."""
    name = action.strip().translate(_APOSTROPHES).upper()
    is_half = name[1:] in ("2", "2'")
    quarter = MOVES.get(name[:1] if is_half else name)
    return apply(quarter, quarter) if quarter is not None and is_half else quarter


@lru_cache(maxsize=4096)
def scramble(depth: int, seed: int) -> State:
    """A cube whose shortest solution has exactly `depth` quarter turns."""
    rng = np.random.default_rng(seed)
    turns = list(MOVES.values())
    while True:  # even of eight turns, the most, one draw in seven can be done in no fewer
        state = SOLVED
        for number in rng.integers(len(turns), size=depth):
            state = apply(state, turns[int(number)])
        if len(solution(state)) == depth:
            return state
