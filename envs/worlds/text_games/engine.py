"""The process that runs the games: generates them, plays them, and can be killed at any time.

It reads lines of JSON and answers each with one line; it ends when its input does. TextWorld's
games run in a Z-machine interpreter written in C, ALFWorld's over a planner written in C++. Here
neither can hurt the trainer, and this process alone has their global state. Only `main` runs here;
the trainer's side is `engine_process.py`.

Requests are objects with "do":
    generate: "options", "number" -> "path"; the game is made if it is not there
    list: "data", "split", "task_types" -> "games", the sorted paths of ALFWorld's game files
    start: "session", "path" -> a state
    step: "session", "command" -> a state
    plan: "session" -> "plan", commands that win from here, empty where there are none
    stop: "session" -> nothing
A state has "text", "goal", "room", "commands", "score", "max_score", "won", "lost", "changed" and
"key". A request that fails is answered with "error".
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MAX_FILE_BYTES = 256 << 20
MAX_MEMORY_BYTES = 8 << 30
MAX_IDLE_GAMES = 64
ATTEMPTS = 50
"""Seeds tried for a game: for some of them TextWorld does not find a quest of the wanted length."""


class Loaded:
    """A game that is loaded and can begin anew: loading it costs more than that."""

    def __init__(self, path: str) -> None:
        import textworld

        self.path = path
        self.infos = textworld.EnvInfos(
            admissible_commands=True, won=True, lost=True, score=True, max_score=True,
            facts=True, objective=True, description=True, last_action=True,
            policy_commands=path.endswith(".z8"),
        )  # fmt: skip
        if path.endswith(".z8"):
            self.world = textworld.start(path, self.infos)
            self.world.seed(1)  # the interpreter's own random numbers are the same every time
        else:
            from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos

            wrappers = [AlfredDemangler(), AlfredInfos]
            self.world = textworld.start(path, self.infos, wrappers=wrappers)


class Shelf:
    """Loaded games that nobody plays at the moment, the latest `MAX_IDLE_GAMES` of them."""

    def __init__(self) -> None:
        self._idle: list[Loaded] = []

    def take(self, path: str) -> Loaded:
        for index, loaded in enumerate(self._idle):
            if loaded.path == path:
                return self._idle.pop(index)
        return Loaded(path)

    def put(self, loaded: Loaded) -> None:
        self._idle.append(loaded)
        if len(self._idle) > MAX_IDLE_GAMES:
            self._idle.pop(0).world.close()


class PlayedGame:
    """One game that is being played."""

    def __init__(self, path: str, shelf: Shelf) -> None:
        self.path = path
        self._shelf = shelf
        self._loaded = shelf.take(path)
        self.state = self._loaded.world.reset()
        self._commands: list[str] = []
        self._plan: list[str] | None = None

    def step(self, command: str) -> bool:
        """Whether the command changed the world."""
        if command not in self.state["admissible_commands"]:
            raise ValueError(f"{command!r} is not one of the game's commands")
        before = _facts(self.state), self.state.get("score") or 0
        self.state, _, _ = self._loaded.world.step(command)
        self._commands.append(command)
        # Whoever follows the plan needs no second search: the games answer the same every time.
        self._plan = self._plan[1:] if self._plan and self._plan[0] == command else None
        return before != (_facts(self.state), self.state.get("score") or 0)

    def plan(self) -> list[str]:
        """Commands that win from here."""
        if self._loaded.infos.policy_commands:
            return list(self.state["policy_commands"] or ())
        if self._plan is None:
            self._plan = self._searched_plan()
        return list(self._plan)

    def _searched_plan(self) -> list[str]:
        # The planner takes a while, so it is asked only here, in a second copy of the game.
        copy = self._shelf.take(self.path)
        try:
            copy.infos.policy_commands = not self._commands
            state = copy.world.reset()
            for number, command in enumerate(self._commands, start=1):
                copy.infos.policy_commands = number == len(self._commands)
                state, _, _ = copy.world.step(command)
        finally:
            copy.infos.policy_commands = False
        self._shelf.put(copy)
        return [] if state["won"] else list(state["policy_commands"] or ())

    def close(self) -> None:
        self._shelf.put(self._loaded)


def _facts(state: Any) -> list[str]:
    return sorted(map(str, state["facts"]))


class GameServer:
    """Answers requests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._shelf = Shelf()
        self._sessions: dict[int, PlayedGame] = {}
        self._keys: dict[str, str] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """One reply, for any of the requests."""
        handlers: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            "generate": self._generate,
            "list": _list_games,
            "start": self._start,
            "step": self._step,
            "plan": lambda asked: {"plan": self._sessions[asked["session"]].plan()},
            "stop": self._stop,
        }
        return handlers[request["do"]](request)

    def _generate(self, request: Mapping[str, Any]) -> dict[str, Any]:
        import textworld

        digest = json.dumps([textworld.__version__, request["options"], request["number"]])
        stem = hashlib.blake2b(digest.encode(), digest_size=12).hexdigest()
        path = self._folder / f"{stem}.z8"
        if not path.exists():
            with tempfile.TemporaryDirectory(dir=self._folder) as work:
                made = _made_game(request["options"], request["number"], Path(work) / path.name)
                # The game is complete as soon as its main file is there.
                for suffix in (".json", ".z8"):
                    os.replace(made.with_suffix(suffix), path.with_suffix(suffix))
        return {"path": str(path)}

    def _start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._stop(request)
        session = PlayedGame(request["path"], self._shelf)
        self._sessions[request["session"]] = session
        return self._state(session, changed=True)

    def _step(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = self._sessions[request["session"]]
        changed = session.step(request["command"])
        return self._state(session, changed=changed)

    def _stop(self, request: Mapping[str, Any]) -> dict[str, Any]:
        session = self._sessions.pop(request["session"], None)
        if session is not None:
            session.close()
        return {}

    def _state(self, session: PlayedGame, *, changed: bool) -> dict[str, Any]:
        state = session.state
        if session.path not in self._keys:
            self._keys[session.path] = _task_key(session.path)
        return {
            "text": state["feedback"],
            "goal": state.get("objective") or "",
            "room": state.get("description") or "",
            "commands": state["admissible_commands"],
            "score": state.get("score") or 0,
            "max_score": state.get("max_score") or 1,
            "won": bool(state["won"]),
            "lost": bool(state.get("lost")),
            "changed": changed,
            "key": self._keys[session.path],
        }


def _made_game(asked: Mapping[str, Any], number: int, path: Path) -> Path:
    """Generates and compiles a game of TextWorld; the number draws its seeds."""
    import textworld
    from textworld.generator import compile_game, make_game
    from textworld.generator.chaining import QuestGenerationError

    for attempt in range(ATTEMPTS):
        rng = np.random.default_rng([number, attempt])
        options = textworld.GameOptions()
        options.seeds = {
            name: int(rng.integers(2**32)) for name in ("map", "objects", "quest", "grammar")
        }
        options.nb_rooms = asked["rooms"]
        options.nb_objects = asked["objects"]
        options.nb_parallel_quests = asked["quests"]
        options.quest_length = asked["quest_length"]
        options.grammar.theme = asked["theme"]
        options.grammar.include_adj = asked["theme"] == "house"  # else names may be alike
        options.path = str(path)
        try:
            game = make_game(options)
        except QuestGenerationError:
            continue
        compile_game(game, options)
        return path
    raise ValueError(
        f"TextWorld found no quest of {asked['quest_length']} commands in {asked['rooms']} rooms "
        f"in {ATTEMPTS} tries: lower quest_length or raise rooms"
    )


def _task_key(path: str) -> str:
    """Hash of the game itself: its world, quests and names, whatever seed drew them."""
    if path.endswith(".z8"):
        game = json.loads(Path(path).with_suffix(".json").read_text(encoding="utf-8"))
        parts = [game[name] for name in ("world", "quests", "infos", "objective")]
    else:
        game = json.loads(Path(path).read_text(encoding="utf-8"))
        parts = [game["pddl_problem"], game["grammar"]]
    text = json.dumps(parts, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _list_games(request: Mapping[str, Any]) -> dict[str, Any]:
    from alfworld.agents.environment import get_environment

    folders = {
        name: os.path.join(request["data"], "json_2.1.1", folder)
        for name, folder in (
            ("data_path", "train"),
            ("eval_id_data_path", "valid_seen"),
            ("eval_ood_data_path", "valid_unseen"),
        )
    }
    config = {
        "dataset": {**folders, "num_train_games": -1, "num_eval_games": -1},
        "env": {"goal_desc_human_anns_prob": 0, "task_types": request["task_types"]},
    }
    games = get_environment("AlfredTWEnv")(config, train_eval=request["split"]).game_files
    # The order of a folder's entries differs between machines; a seed must not.
    return {"games": sorted(map(str, games))}


def main() -> None:
    """Entry of the process. Arguments: the folder of games, and a scratch folder, which is removed
    when the input ends, since the trainer may be gone."""
    folder, scratch = Path(sys.argv[1]), sys.argv[2]
    # Whatever the engines print must not be read as an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    # The interpreter copies itself into the folder of temporary files, and Inform works there.
    tempfile.tempdir = os.environ["TMPDIR"] = scratch
    os.environ.setdefault("ALFWORLD_DATA", scratch)  # else alfworld makes a folder at home
    os.chdir(scratch)
    engine = GameServer(folder)
    answers.write("ready\n")
    answers.flush()
    for line in sys.stdin:
        try:
            reply = engine.answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - other people's engines: the trainer is told
            reply = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(reply) + "\n")
        answers.flush()
    shutil.rmtree(scratch, ignore_errors=True)
