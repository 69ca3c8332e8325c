"""Rubiks: turn a scrambled 2x2 cube back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ...base import EnvParamsError, EnvSpec, Observation, StepResult, hash_task
from ...frames import grid_frame
from ...params import require_within
from ..task_env import TaskEnv
from .cube_moves import FACES, MOVES, SOLVED, Permutation, State, apply, is_solved, solution

_COLOURS = "WYORGB"
"""Of the faces in the order of `FACES`, when the cube is solved."""
_NAMES = ("Up", "Down", "Left", "Right", "Front", "Back")
_LEGEND = {
    "W": "white", "Y": "yellow", "O": "orange", "R": "red", "G": "green", "B": "blue",
    " ": "nothing",
}  # fmt: skip
_MAX_DEPTH = 8
_APOSTROPHES = str.maketrans(dict.fromkeys("\u2019\u2018\u02bc\u2032\u00b4`", "'"))
_DRAWS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RubiksConfig:
    """Difficulty of `rubiks`.

    `depth`: quarter turns of the shortest solution.
    """

    depth: int = 3

    def __post_init__(self) -> None:
        require_within(self, depth=(1, _MAX_DEPTH))


class Rubiks(TaskEnv):
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

    _config: RubiksConfig

    def __init__(self, config: RubiksConfig | None = None) -> None:
        super().__init__(config)
        self._first = self._state = SOLVED

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
        """A shortest sequence of quarter turns."""
        return solution(self._state)

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(MOVES)

    def task_key(self) -> str:
        """The stickers as they are shown first."""
        return hash_task(self.spec.id, self._first)

    @property
    def is_over(self) -> bool:
        return self.is_solved

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
    for _ in range(_DRAWS):
        state = SOLVED
        for number in rng.integers(len(turns), size=depth):
            state = apply(state, turns[int(number)])
        if len(solution(state)) == depth:
            return state
    raise EnvParamsError(f"rubiks drew no cube of depth {depth} in {_DRAWS} tries: lower depth")
