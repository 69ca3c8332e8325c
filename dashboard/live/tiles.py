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
    keys = queries.metric_keys(run_id)
    made = tiles(
        queries.outlines(run_id, tile_keys(keys)),
        keys,
        verdict=queries.known_verdict(run_id),
        progress=pulses.progress(run_id),
    )
    return {"tiles": [asdict(tile) for tile in made], "position": pulses.mark(position)}


def show(run_id: str, *, is_followed: bool) -> None:
    """Draw the tiles here."""
    data = {
        **answer(run_id),
        "source": pulses.address(run_id, "tiles"),
        "pulse": pulses.address(run_id) if is_followed else None,
        "every": pulses.EVERY_S,
    }
    component("tiles.js")(key="tiles", data=json.dumps(data, allow_nan=False))
