"""The trainer's side of the process that runs the games: starts it, asks it, replaces it.

One process serves all games of a trainer. If it dies or hangs, the episode that asked last is lost;
the others are played again from their commands in a new process, since games have no randomness.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from echoscope.text.limited_child import Child, ChildError

from ...base import EnvUnavailableError, shorten

GAME_TIMEOUT_S = 120.0
"""Generating and compiling a game, or opening one."""
STEP_TIMEOUT_S = 20.0
LIST_TIMEOUT_S = 600.0
"""ALFWorld opens thousands of files to find its games."""


class EngineDiedError(RuntimeError):
    """The process ended or gave no answer in time."""


class GameEngineError(RuntimeError):
    """The process answered that it could not do what was asked."""


class GameEngine(Child):
    """The process of all games."""

    def __init__(self, code: str = "") -> None:
        """`code`: Python that answers requests, instead of `engine.main`."""
        super().__init__(code or f"from {__package__}.engine import main; main()")
        self._scratch: Path | None = None

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """The answer to a request of `engine.py`.

        Raises:
            EngineDiedError: the process died or hung; it starts again when it is asked next.
            GameEngineError: it could not do it, with its reason.
        """
        with _named_errors():
            reply: dict[str, Any] = self.answer(request, timeout_s, request["do"])
        if "error" in reply:
            raise GameEngineError(shorten(reply["error"], 300))
        return reply

    def ensure_running(self) -> int:
        """Starts the process where there is none, and returns its number."""
        with self._lock, _named_errors():
            self._started()
            return self.generation

    def close(self) -> None:
        """End the process, and remove the games unless a cache keeps them."""
        super().close()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None

    def arguments(self) -> Sequence[str]:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="echoscope-engine-"))
        return str(games_folder(self._scratch)), str(self._scratch)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    try:
        yield
    except ChildError as error:
        raise EngineDiedError(f"the game engine {error}") from None


class GameSession:
    """One game that an environment plays."""

    _numbers = itertools.count(1)

    def __init__(self, engine: GameEngine) -> None:
        self._engine = engine
        self._number = next(self._numbers)
        self._generation = 0
        self._path = ""
        self._commands: list[str] = []

    def start(self, path: str) -> dict[str, Any]:
        """Opens a game and returns its first state."""
        self._path, self._commands = path, []
        return self._open()

    def step(self, command: str) -> dict[str, Any]:
        """Gives the game one of its own commands and returns the state after it."""
        self._restore()
        state = self._ask("step", command=command)
        self._commands.append(command)
        return state

    def plan(self) -> list[str]:
        """Commands that win from here; empty where there are none."""
        self._restore()
        plan: list[str] = self._ask("plan", timeout_s=GAME_TIMEOUT_S)["plan"]
        return plan

    def close(self) -> None:
        """Ends the game."""
        if self._generation and self._generation == self._engine.generation:
            self._generation = 0
            with contextlib.suppress(EngineDiedError):
                self._ask("stop")

    def _open(self) -> dict[str, Any]:
        self._generation = self._engine.ensure_running()
        return self._ask("start", timeout_s=GAME_TIMEOUT_S, path=self._path)

    def _restore(self) -> None:
        """Plays the commands so far again where the process is another one by now."""
        if self._generation != self._engine.ensure_running():
            self._open()
            for command in self._commands:
                self._ask("step", command=command)

    def _ask(self, do: str, *, timeout_s: float = STEP_TIMEOUT_S, **more: Any) -> dict[str, Any]:
        return self._engine.ask(timeout_s, do=do, session=self._number, **more)


@lru_cache(maxsize=1)
def shared_engine() -> GameEngine:
    """The engine of this process: it takes a second to start."""
    engine = GameEngine()
    atexit.register(engine.close)
    return engine


def games_folder(scratch: Path) -> Path:
    """Where generated games lie: `$ECHOSCOPE_CACHE/textworld`, or in `scratch` without a cache."""
    cache = os.environ.get("ECHOSCOPE_CACHE")
    folder = Path(cache).expanduser() / "textworld" if cache else scratch / "games"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvUnavailableError(
            f"cannot make {folder} ({error.strerror}): set ECHOSCOPE_CACHE to another folder"
        ) from None
    return folder.resolve()
