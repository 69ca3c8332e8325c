"""The process of the games, with a scripted engine: who pays when it dies, hangs or refuses."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from costs import HANG_S, without_hanging

from echoscope.envs.worlds.text_games.engine_process import (
    EngineDiedError,
    GameEngine,
    GameEngineError,
    GameSession,
    games_folder,
)
from echoscope.envs.worlds.text_games.text_game import clean
from echoscope.text import limited_child

SCRIPTED = """
import json, os, sys, time
said = {}
print("ready", flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    heard = said.setdefault(asked.get("session"), [])
    if asked["do"] == "start":
        heard.clear()
    command = asked.get("command")
    if command == "die":
        os._exit(3)
    if command == "hang":
        time.sleep(60)
    if command == "refuse":
        print(json.dumps({"error": "ValueError: no"}), flush=True)
        continue
    if command:
        heard.append(command)
    print(json.dumps({"heard": heard, "pid": os.getpid()}), flush=True)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GameEngine]:
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path))
    engine = GameEngine(SCRIPTED)
    yield engine
    engine.close()


@pytest.mark.parametrize("end", ["die", "hang"])
def test_a_dead_or_hanging_engine_costs_one_game_and_the_others_go_on(
    engine: GameEngine, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    guilty, other = GameSession(engine), GameSession(engine)
    for session in (guilty, other):
        session.start("a game")
        session.step("look")
    monkeypatch.setattr(GameSession._ask, "__kwdefaults__", {"timeout_s": 1.0})
    died = pytest.raises(EngineDiedError, match=r"(ended during|longer than 1 seconds for) step")
    with without_hanging(), died:
        guilty.step(end)
    # A new process, in which the other game has been played again up to here.
    assert other.step("go north")["heard"] == ["look", "go north"]
    assert guilty.start("a game")["heard"] == []


def test_a_refusal_costs_nothing(engine: GameEngine) -> None:
    session = GameSession(engine)
    pid = session.start("a game")["pid"]
    with pytest.raises(GameEngineError, match="no"):
        session.step("refuse")
    assert session.step("look") == {"heard": ["look"], "pid": pid}


def test_an_engine_that_does_not_start_is_an_error_within_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for code in ("raise SystemExit(1)", "import time; time.sleep(60)"):
        monkeypatch.setattr(limited_child, "START_TIMEOUT_S", 1.0)
        broken = GameEngine(code)
        with pytest.raises(EngineDiedError, match="the start"):
            broken.ask(1.0, do="list")
        broken.close()


def test_games_lie_in_the_cache_or_in_a_folder_that_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ECHOSCOPE_CACHE", str(tmp_path))
    assert games_folder(tmp_path / "scratch") == tmp_path / "textworld"
    monkeypatch.delenv("ECHOSCOPE_CACHE")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    engine = GameEngine(SCRIPTED)
    engine.ensure_running()
    [scratch] = tmp_path.glob("echoscope-*")
    assert (scratch / "games").is_dir()
    engine.close()
    assert list(tmp_path.glob("echoscope-*")) == []


@pytest.mark.long
def test_a_trainer_that_is_killed_leaves_neither_process_nor_files(tmp_path: Path) -> None:
    code = (
        "import os, time; from echoscope.envs.worlds.text_games.engine_process import GameEngine; "
        "engine = GameEngine(); engine.ensure_running(); "
        "print(engine._process.pid, flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    environment.pop("ECHOSCOPE_CACHE", None)
    trainer = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert trainer.stdout is not None
    pid = int(trainer.stdout.readline())
    assert list(tmp_path.iterdir())
    trainer.kill()
    trainer.communicate()
    deadline = time.monotonic() + HANG_S
    while time.monotonic() < deadline and (
        Path(f"/proc/{pid}").exists() or any(tmp_path.iterdir())
    ):
        time.sleep(0.05)
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{pid}").exists()


def test_a_closed_engine_leaves_no_process(engine: GameEngine) -> None:
    pid = GameSession(engine).start("a game")["pid"]
    engine.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_answers_are_cleaned() -> None:
    raw = (
        "-= Welcome to TextWorld, ALFRED! =-\n\n\x1b[1mYou open the bureau\x1b[0m,   revealing a "
        "worm.\x07\n\n\n\n*** The End ***\n\nWould you like to RESTART, RESTORE a saved game, QUIT "
        "or UNDO the last command?\n>      -= Studio =-0/4"
    )
    assert clean(raw) == "You open the bureau, revealing a worm.\n*** The End ***"
    assert clean("\n\n-= Studio =-\nA room.\n\n\n>          -= Studio =-0/3") == (
        "-= Studio =-\nA room."
    )
