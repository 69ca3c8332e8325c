"""What some worlds need from outside, made here, so that they can be drawn and described.

ALFWorld gets small kitchens of our own in its format, and `remote` a server of FrozenLake. Lean is
a server of the real Lean that `make test-lean` unpacks; where there is none, of one that knows the
shipped proofs by heart.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from common import temporary_folder

from echoscope.envs import registry
from echoscope.envs.worlds.text_games.alfworld import AlfWorld

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

import real_lean
import scripted_lean
from alfworld_data import write_games
from serving_worlds import served

from echoscope.envs.worlds.proofs.backends import HEADER_TIMEOUT_S, shared_repl
from echoscope.envs.worlds.proofs.lean import SERVER_VARIABLE, Lean
from echoscope.envs.worlds.proofs.verdicts import PROBE
from echoscope.envs.worlds.remote.sessions import Served

CAPTIONS = {
    "alfworld": "alfworld (a kitchen of our own)",
    "lean": "lean (a scripted server)" if real_lean.lacking() else "lean",
    "remote": "remote (serves frozen_lake)",
}


@contextmanager
def kitchens() -> Iterator[None]:
    """Games for ALFWorld, where its package is there and its own games are not."""
    if os.environ.get("ALFWORLD_DATA") or registry.lacking(AlfWorld.spec):
        yield
        return
    with temporary_folder() as folder:
        os.environ["ALFWORLD_DATA"] = str(write_games(folder))
        try:
            yield
        finally:
            del os.environ["ALFWORLD_DATA"]


@contextmanager
def real_lean_server() -> Iterator[None]:
    """A server of the real Lean of `make test-lean`, for whoever asks at LEAN_SERVER_API_URL."""
    if real_lean.lacking() or not Lean.lacks():
        yield
        return
    params = real_lean.PARAMS
    repl = shared_repl(params["repl"], "", params["lake"], params["memory_mb"])
    repl.check("", PROBE, HEADER_TIMEOUT_S)  # no step waits for the start

    def respond(code: str) -> dict[str, Any]:
        messages = repl.check("", code, params["timeout_s"]).messages
        told = [scripted_lean.message(each.severity, each.line, 0, each.text) for each in messages]
        return {"env": 0, "messages": told}

    with scripted_lean.kimina() as server:
        server.respond = respond
        os.environ[SERVER_VARIABLE] = server.url
        try:
            yield
        finally:
            del os.environ[SERVER_VARIABLE]
            repl.close()


@contextmanager
def lean_params() -> Iterator[dict[str, Any]]:
    """Parameters of the world `lean`: none where LEAN_SERVER_API_URL says where Lean is."""
    with real_lean_server():
        if not Lean.lacks():
            yield {}
            return
        with scripted_lean.kimina() as scripted:
            yield {"server": scripted.url}


@contextmanager
def outside_parts() -> Iterator[dict[str, dict[str, Any]]]:
    """Parameters of the worlds that need something from outside, by id."""
    with kitchens(), lean_params() as lean, served(Served(id="frozen_lake")) as lake:
        yield {"lean": lean, "remote": {"url": lake}}
