"""The trainer's side of the process that runs the games: starts it, asks it, replaces it.

One process serves all games of a trainer. If it dies or hangs, the episode that asked last is lost;
the others are played again from their commands in a new process, since games have no randomness.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from ...base import EnvUnavailableError, shorten

START_TIMEOUT_S = 60.0
GAME_TIMEOUT_S = 120.0
"""Generating and compiling a game, or opening one."""
STEP_TIMEOUT_S = 20.0
LIST_TIMEOUT_S = 600.0
"""ALFWorld opens thousands of files to find its games."""
_KEPT_VARIABLES = ("PATH", "HOME", "LANG", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "TMPDIR")


class EngineDiedError(RuntimeError):
    """The process ended or gave no answer in time."""


class EngineError(RuntimeError):
    """The process answered that it could not do what was asked."""


class GameEngine:
    """The process. Several threads may ask; their questions wait for each other."""

    def __init__(self, code: str = "") -> None:
        """`code`: Python that answers requests, instead of `engine.main`."""
        self._code = code or f"from {__package__}.engine import main; main()"
        self._lock = threading.RLock()
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._folder: Path | None = None
        self._is_temporary = False
        self._scratch: Path | None = None
        self.generation = 0
        """How many processes there were: sessions of an earlier one are gone."""

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """The answer to a request of `engine.py`.

        Raises:
            EngineDiedError: the process died or hung; it starts again when it is asked next.
            EngineError: it could not do it, with its reason.
        """
        with self._lock:
            process = self._running()
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
            except OSError:
                self._kill()
                raise EngineDiedError(f"the game engine ended before {request['do']}") from None
            line = self._line(timeout_s, str(request["do"]))
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise EngineError(shorten(reply["error"], 300))
        return reply

    def ensure_running(self) -> int:
        """Starts the process where there is none, and returns its number."""
        with self._lock:
            self._running()
            return self.generation

    def close(self) -> None:
        """End the process, and remove the games unless a cache keeps them."""
        with self._lock:
            if os.getpid() != self._owner:
                return
            self._kill()
            if self._folder is not None and self._is_temporary:
                shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _running(self) -> subprocess.Popen[str]:
        if os.getpid() != self._owner:  # a fork: the process belongs to the parent
            self._process = self._folder = self._scratch = None
            self._owner = os.getpid()
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._kill()
        if self._folder is None:
            self._folder, self._is_temporary = games_folder()
        self._scratch = Path(tempfile.mkdtemp(prefix="echoscope-engine-"))
        arguments = (str(self._folder), str(int(self._is_temporary)), str(self._scratch))
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", self._code, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env=_environment(),
            start_new_session=True,  # Ctrl-C ends the trainer in order, and the trainer ends this
        )
        self.generation += 1
        self._line(START_TIMEOUT_S, "the start")
        return self._process

    def _line(self, timeout_s: float, what: str) -> str:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        is_ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        line = process.stdout.readline() if is_ready else ""
        if not line.endswith("\n"):
            self._kill()
            reason = "ended during" if is_ready else f"took longer than {timeout_s:g} seconds for"
            raise EngineDiedError(f"the game engine {reason} {what}")
        return line

    def _kill(self) -> None:
        if self._process is None:
            return
        try:
            os.killpg(self._process.pid, signal.SIGKILL)  # with the compilers that it started
        except ProcessLookupError:
            self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # what was not written goes nowhere
                    continue
        self._process = None
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
            self._scratch = None


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
            try:
                self._ask("stop")
            except EngineDiedError:
                return

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


def games_folder() -> tuple[Path, bool]:
    """Where generated games lie, and whether they are removed with the engine.

    `$ECHOSCOPE_CACHE/textworld` keeps them; without it they lie in a temporary folder.
    """
    cache = os.environ.get("ECHOSCOPE_CACHE")
    if not cache:
        return Path(tempfile.mkdtemp(prefix="echoscope-games-")), True
    folder = Path(cache).expanduser() / "textworld"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvUnavailableError(
            f"cannot make {folder} ({error.strerror}): set ECHOSCOPE_CACHE to another folder"
        ) from None
    return folder.resolve(), False


def _environment() -> dict[str, str]:
    """No more than the engine needs, and the same order of sets in every process."""
    kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    path = os.pathsep.join(os.path.abspath(entry) for entry in sys.path if entry)
    return {**kept, "PYTHONPATH": path, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
