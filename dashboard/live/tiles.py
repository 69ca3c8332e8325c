"""The tiles of the Live page: six numbers of a run, which go on by themselves while it is live."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from ..charts.tiles import tile_keys, tiles
from ..data import queries
from . import pulses
from .scripts import component


def answer(run_id: str) -> dict[str, Any]:
    """The tiles as they are now, and the position of the run that they show."""
    position = queries.position(run_id)  # first: what is read later is at least as new
    verdict = queries.known_verdict(run_id)
    judged = None if verdict is None else (verdict.last_step, verdict.text)

    def build() -> list[dict[str, Any]]:
        keys = queries.metric_keys(run_id)
        outlines = queries.outlines(run_id, tile_keys(keys))
        progress = pulses.progress(run_id)
        made = tiles(outlines, keys, verdict=verdict, progress=progress)
        return [asdict(tile) for tile in made]

    drawn: list[dict[str, Any]] = queries.answers.get(("tiles", run_id, judged), position, build)
    return {"tiles": drawn, "position": pulses.mark(position)}


def show(run_id: str, *, is_followed: bool) -> None:
    """Draw the tiles here."""
    data = {
        **answer(run_id),
        "source": pulses.address(run_id, "tiles"),
        "pulse": pulses.address(run_id) if is_followed else None,
        "every": pulses.EVERY_S,
    }
    component("tiles.js")(key="tiles", data=json.dumps(data, allow_nan=False))
