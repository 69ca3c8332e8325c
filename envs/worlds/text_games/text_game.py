"""What the text games share: commands that the game lists itself, clean text, and the engine."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from echoscope.text.pictures import card_frame

from ...base import (
    EnvUnavailableError,
    Observation,
    StepResult,
    hash_task,
    normalise,
)
from ..task_env import TaskEnv
from .engine_process import GameEngineError, GameSession, shared_engine

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_STATUS_LINE = re.compile(r"\n\s*>[^\n]*\s*\Z")
_QUESTION_AT_THE_END = re.compile(r"Would you like to RESTART.*\Z", re.DOTALL)
_TITLE = re.compile(r"-= Welcome to TextWorld[^\n]*=-")
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")
_TASK = re.compile(r"Your task is to: ([^\n]*)")
_SHORT_FORMS: Mapping[str, str] = {
    "n": "go north", "s": "go south", "e": "go east", "w": "go west", "north": "go north",
    "south": "go south", "east": "go east", "west": "go west", "i": "inventory", "l": "look",
}  # fmt: skip
_OTHER_VERBS: Mapping[str, str] = {"x": "examine", "get": "take", "pick up": "take"}


class TextGame(TaskEnv[Any]):
    """A game of words. Subclasses choose the game of a seed and what winning is worth.

    Nothing that a policy writes reaches the interpreter: an action is looked up among the commands
    that the game lists itself, and all else (`quit`, `save`, `undo`, `script` too) is refused.
    """

    examples: ClassVar[str]
    """Commands for the instructions, where the observations list none."""
    is_over = is_solved = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._session = GameSession(shared_engine())
        self._state: dict[str, Any] = {}
        self._commands: dict[str, str] = {}
        self._text = self._goal = ""
        self._is_first = True

    def begin(self, seed: int, noise_seed: int) -> None:
        path = self._game_of(seed)
        try:
            self._take(self._session.start(path))
        except GameEngineError as error:
            raise EnvUnavailableError(f"{self.spec.id} cannot open {path}: {error}") from None
        room = clean(self._state["room"] or self._state["text"])
        task = _TASK.search(room)
        self._goal = clean(self._state["goal"]) or (task[1] if task else "")
        self._text, self._is_first = room if task else f"{self._goal}\n{room}", True

    def step(self, action: str) -> StepResult:
        command = self._command_of(action)
        if command is None or self.is_over:
            return self.refused(action)
        before, self._is_first = self._state, False
        self._take(self._session.step(command))
        self._text = clean(self._state["text"]) or "Nothing happens."
        reward = self._reward(before, self._state)
        return self.result(reward, is_effective=bool(self._state["changed"]))

    def instructions(self) -> str:
        commands = "the commands listed" if self._config.show_commands else "commands such as these"
        examples = "" if self._config.show_commands else f": {self.examples}"
        return f"Play a text game and reach its goal. Actions: one of {commands}{examples}."

    def plan(self) -> list[str] | None:
        """Commands that win from here, by the game's own policy or planner."""
        return self._session.plan() or None

    def legal_actions(self) -> tuple[str, ...]:
        return tuple(self._commands.values()) if self._config.show_commands else ()

    def guesses(self) -> tuple[str, ...]:
        return tuple(self._commands.values())

    def task_key(self) -> str | None:
        """The game itself: its world, its quest and its names."""
        return hash_task(self.spec.id, self._state["key"]) if self._state else None

    def close(self) -> None:
        self._session.close()

    @abstractmethod
    def _game_of(self, seed: int) -> str:
        """The path of the seed's game."""

    @abstractmethod
    def _reward(self, before: Mapping[str, Any], after: Mapping[str, Any]) -> float:
        """What a command earned."""

    def info(self) -> dict[str, float]:
        return {"score": float(self._state["score"])}

    def _take(self, state: dict[str, Any]) -> None:
        self._state = state
        self.is_over, self.is_solved = state["won"] or state["lost"], state["won"]
        self._commands = (
            {} if self.is_over else {normalise(name): name for name in state["commands"]}
        )

    def _command_of(self, action: str) -> str | None:
        """The game's command that an action stands for, letter case and short forms aside."""
        if len(action) > 200:
            return None
        word = " ".join(normalise(action).split())
        if word in _SHORT_FORMS and word not in self._commands:
            word = _SHORT_FORMS[word]
        for other, verb in _OTHER_VERBS.items():
            if word.startswith(f"{other} ") and word not in self._commands:
                word = f"{verb} {word.removeprefix(f'{other} ')}"
        return self._commands.get(word)

    def observe(self) -> Observation:
        lines = [self._text]
        if self._config.repeat_goal and not self._is_first and self._goal:
            lines.append(f"Goal: {self._goal}")
        names = ", ".join(self._commands.values())
        if self._config.show_commands and names:
            lines.append(f"Commands: {names}.")
        title = f"{self.spec.id}: score {self._state['score']:g} of {self._state['max_score']:g}"
        card = [f"Goal: {self._goal}", *self._text.splitlines(), f"Commands: {names or 'none'}"]
        return Observation(text="\n".join(lines), frame=card_frame(title, card))


def clean(text: str) -> str:
    """A game's answer as lines of words: no escape codes, banners, status line or question."""
    text = _TITLE.sub("", _ANSI.sub("", text))
    text = _QUESTION_AT_THE_END.sub("", _STATUS_LINE.sub("", text))
    text = _CONTROL.sub(" ", text.replace("\r", "\n"))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line for line in lines if line and line != ">")
