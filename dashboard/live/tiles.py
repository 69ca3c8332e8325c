"""The tiles of the Live page: six numbers of a run, which go on by themselves while it is live."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import streamlit as st

from ..charts.tiles import tile_keys, tiles
from ..data import queries
from ..data.cache import AnswerCache
from ..web import assets
from . import pulses

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
    found = queries.known_verdict(run_id)
    evidence = () if found is None else tuple(one.metric for one in found.evidence)

    def build() -> list[dict[str, Any]]:
        known = queries.metric_keys(run_id)
        data = queries.series(run_id, tile_keys(known))
        progress = pulses.progress_tile(run_id)
        made = tiles(data, known, evidence=evidence, progress=progress)
        return [tile.to_json() for tile in made]

    shown: list[dict[str, Any]] = _answers.get((run_id, evidence), position, build)
    return {"tiles": shown, "position": pulses.mark(position)}


def show(run_id: str, *, is_followed: bool) -> None:
    """Draw the tiles here."""
    data = {
        **answer(run_id),
        "source": address(run_id),
        "pulse": pulses.address(run_id) if is_followed else None,
        "every": pulses.EVERY_S,
    }
    assert all(math.isfinite(v) for tile in data["tiles"] for v in tile["spark"])
    _component()(key="tiles", data=json.dumps(data))


@functools.cache
def _component() -> Callable[..., Any]:
    paths = (assets.TILES.path, assets.PULSE.path)
    script, pulse = (json.dumps(path) for path in paths)
    code = f"""
export default async function (given) {{
  const at = (path) => location.origin + path;
  const [{{ default: show }}, {{ follow }}] =
    await Promise.all([import(at({script})), import(at({pulse}))]);
  return show(given, follow);
}}
"""
    return st.components.v2.component("echoscope_tiles", js=code, isolate_styles=False)
