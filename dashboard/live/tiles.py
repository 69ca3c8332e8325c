"""The tiles of the Live page: six numbers of a run, which go on by themselves while it is live."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from ..charts.tiles import tile_keys, tiles
from ..data import queries
from ..data.cache import AnswerCache
from . import pulses
from .scripts import component

_answers = AnswerCache()


def address(run_id: str) -> str:
    """Where a browser asks for the tiles of a run."""
    return f"/api/runs/{quote(run_id, safe='')}/tiles"


def answer(run_id: str) -> dict[str, Any]:
    """The tiles as they are now, and the position of the run that they show.

    Raises:
        Problem: no such run, or it cannot be read.
    """
    position = queries.position(run_id)  # first: what is read later is at least as new
    verdict = queries.known_verdict(run_id)
    judged = None if verdict is None else (verdict.last_step, verdict.text)

    def build() -> list[dict[str, Any]]:
        keys = queries.metric_keys(run_id)
        outlines = queries.outlines(run_id, tile_keys(keys))
        progress = pulses.progress(run_id)
        made = tiles(outlines, keys, verdict=verdict, progress=progress)
        return [asdict(tile) for tile in made]

    drawn: list[dict[str, Any]] = _answers.get((run_id, judged), position, build)
    return {"tiles": drawn, "position": pulses.mark(position)}


def show(run_id: str, *, is_followed: bool) -> None:
    """Draw the tiles here."""
    data = {
        **answer(run_id),
        "source": address(run_id),
        "pulse": pulses.address(run_id) if is_followed else None,
        "every": pulses.EVERY_S,
    }
    assert all(math.isfinite(v) for tile in data["tiles"] for v in tile["spark"])
    component("echoscope_tiles", "tiles.js")(key="tiles", data=json.dumps(data))
