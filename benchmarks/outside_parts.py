"""What some worlds need from outside, made here, so that they can be drawn and described.

ALFWorld gets small kitchens of our own in its format, Lean a server that knows the shipped proofs
by heart, and `remote` a server of FrozenLake.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from echoscope.envs import registry
from echoscope.envs.worlds.text_games.alfworld import AlfWorld

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "shared"))

import scripted_lean
from alfworld_data import write_games
from serving_worlds import served

from echoscope.envs.worlds.remote.sessions import Served

CAPTIONS = {
    "alfworld": "alfworld (a kitchen of our own)",
    "lean": "lean (a scripted server)",
    "remote": "remote (serves frozen_lake)",
}


@contextmanager
def kitchens() -> Iterator[None]:
    """Games for ALFWorld, where its package is there and its own games are not."""
    if os.environ.get("ALFWORLD_DATA") or registry.lacking(AlfWorld.spec):
        yield
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ALFWORLD_DATA"] = str(write_games(Path(folder)))
        try:
            yield
        finally:
            del os.environ["ALFWORLD_DATA"]


@contextmanager
def outside_parts() -> Iterator[dict[str, dict[str, Any]]]:
    """Parameters of the worlds that need something from outside, by id."""
    with kitchens(), scripted_lean.kimina() as lean, served(Served(id="frozen_lake")) as lake:
        yield {"lean": {"server": lean.url}, "remote": {"url": lake}}
