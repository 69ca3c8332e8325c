"""The one-player games of the package textarena as worlds: `textarena:ID`."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echoscope.text.pictures import card_frame

from ...base import (
    EnvParamsError,
    EnvSpec,
    EnvUnavailableError,
    Observation,
    StepResult,
    hash_task,
    shorten,
)
from ...params import require_known
from ..task_env import TaskEnv

_ALONE = (
    "2048", "Bandit", "Blackjack", "Countdown", "Crosswords", "Cryptarithm", "FifteenPuzzle",
    "FrozenLake", "GuessTheNumber", "Hangman", "LightsOut", "Mastermind",
    "Minesweeper", "PegJump", "Secretary", "Set", "Slitherlink", "Sudoku",
    "ThreeCardMonte", "TowerOfHanoi", "WordLadder", "WordSearch", "Wordle",
)  # fmt: skip
"""Games that one player plays. Left out are Sokoban, whose levels may take minutes to make,
RushHour, which takes seconds for each and prints what it does, and LogicPuzzle, which draws another
puzzle in another process."""
_NOT_ALLOWED = "attempted an invalid move"
_MAX_CHARS = 2_000
"""Of an action: longer ones are none."""
_randomness = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class TextArenaConfig:
    """Which game, and from which final reward on it counts as won.

    `name`: such as `Minesweeper-v0`; the id `textarena:Minesweeper-v0` names it. `params`: passed
    to the game.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    success_reward: float = 1.0


class TextArena(TaskEnv[TextArenaConfig]):
    """A game of textarena for one player.

    Description:
        2048, Minesweeper, Mastermind, Sudoku, Wordle, tower of Hanoi and others.
    Observation:
        What the game says: its rules first, then its answer to each move.
    Actions:
        A text with the move in the form that the rules ask for, mostly in square brackets.
    Rewards:
        The game's, at its end: 1 for a win, for many games a part of it.
    Episode end:
        The game's. A move that it does not allow changes nothing, however often it is tried.
    Success:
        The final reward is at least `success_reward`.
    Seeds:
        `seed` starts the global random generators that the games draw from; they belong to the
        episode alone, and are put back after each call. `noise_seed` is not used.
    Requires:
        textarena (`pip install -e '.[gyms]'`). Games of words download a list of words, once.
    Example:
        >>> world = TextArena(TextArenaConfig(name="GuessTheNumber-v0"))  # doctest: +SKIP
        >>> world.reset(seed=3, noise_seed=0).text[:35]  # doctest: +SKIP
        'You are playing Guess The Number.'
    """

    spec = EnvSpec(
        id="textarena",
        config_type=TextArenaConfig,
        max_turns=20,
        description="Play a one-player game of textarena, such as textarena:Minesweeper-v0.",
        requires=("textarena",),
        extra="gyms",
    )
    is_over, is_solved = True, False

    def __init__(self, config: TextArenaConfig) -> None:
        super().__init__(config)
        require_known("textarena has no one-player game", config.name, self.names())
        self._game: Any = None
        self._state: Any = None
        self._text, self._task_key = "", ""

    @staticmethod
    def names() -> tuple[str, ...]:
        """The one-player games of the installed package."""
        from textarena.envs.registration import ENV_REGISTRY

        raw = (name.removesuffix("-raw") for name in ENV_REGISTRY if name.endswith("-raw"))
        return tuple(sorted(name for name in raw if name.split("-v")[0] in _ALONE))

    def begin(self, seed: int, noise_seed: int) -> None:
        import textarena

        name = self._config.name
        self._state = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
        )
        try:
            with self._own_randomness():
                self._game = textarena.make(f"{name}-raw", **self._config.params)
                self._game.reset(num_players=1, seed=seed % 2**31)
                self._text = self._news()
        except TypeError as error:
            raise EnvParamsError(f"{name}: {shorten(str(error), 300)}") from None
        except Exception as error:  # noqa: BLE001 - a list of words that is not there, for example
            why = " ".join(str(error).replace("*", " ").split())
            raise EnvUnavailableError(f"{name} cannot start: {shorten(why, 300)}") from None
        self.is_over = self.is_solved = False
        self._task_key = hash_task(self.spec.id, name, self._text)

    def step(self, action: str) -> StepResult:
        if self.is_over or not action.strip() or len(action) > _MAX_CHARS:
            return self.refused(action)
        before = copy.deepcopy(self._game), self._state
        try:
            with self._own_randomness():
                # Games repeat the move in their answer, where nobody could write a lone surrogate.
                is_done, _ = self._game.step(action.encode("utf-8", "replace").decode())
                news = self._info().get("reason") if is_done else self._news()
                news = str(news or "The game is over.")
                rewards = self._game.close()[0] if is_done else {}
        except Exception:  # noqa: BLE001 - a game that fails on a move does not allow it
            self._game, self._state = before
            return self.refused(action)
        if _NOT_ALLOWED in news or self._info().get("invalid_move"):
            # Here such a move costs a turn and changes nothing; there, some of them end the game.
            self._game, self._state = before
            observation = Observation(text=news, frame=self.observe().frame)
            return self.result(0.0, observation, is_valid=False, is_effective=False)
        self._text, self.is_over = news, bool(is_done)
        reward = float((rewards or {}).get(0, 0.0))
        self.is_solved = self.is_over and reward >= self._config.success_reward
        return self.result(reward)

    def instructions(self) -> str:
        return "Play the game. Action: your move, in the form that the rules ask for."

    def task_key(self) -> str:
        return self._task_key

    def observe(self) -> Observation:
        return Observation(
            text=self._text, frame=card_frame(self._config.name, self._text.splitlines())
        )

    def _news(self) -> str:
        """What the game has said since it was last asked, the player's own words left out."""
        _, messages = self._game.get_observation()
        said = [str(text) for sender, text, *_ in messages if sender != 0]
        return "\n".join(said).strip() or "Nothing happens."

    def _info(self) -> Mapping[str, Any]:
        """What the game says of its end."""
        return (self._game.state.game_info or {}).get(0) or {}

    @contextmanager
    def _own_randomness(self) -> Iterator[None]:
        """The games draw from the generators that all of Python shares."""
        with _randomness:
            others = random.getstate(), np.random.get_state()  # noqa: NPY002
            own, own_numpy = self._state
            random.setstate(own)
            np.random.set_state(own_numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._state = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(others[0])
                np.random.set_state(others[1])  # noqa: NPY002
