"""Words about runs, and foreign text made fit for Streamlit's labels."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Mapping
from typing import Literal

from ..store.reader import RunInfo
from .escaping import visible

STALE_S = 120.0
"""A live run that has acknowledged nothing for so long, or for ten of its steps, is stale."""

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:@^=&\"'/])")
Colour = Literal["red", "orange", "blue", "green", "gray"]
"""Of a Streamlit badge."""
_STATUS_COLOURS: Mapping[str, Colour] = {
    "running": "blue",
    "finished": "green",
    "stopped": "orange",
    "interrupted": "orange",
    "failed": "red",
    "crashed": "red",
}


def plain(text: str, limit: int = 200) -> str:
    """Hostile text as a Streamlit label: shown as it is, on one line, none of it Markdown.

    Signs are escaped; where that is not enough (autolinks, emoji and icon names) an invisible word
    joiner keeps them apart.
    """
    shown = visible(" ".join(text.split()), limit)
    escaped = _MARKDOWN.sub(r"\\\1", shown)
    return re.sub(r"(\\[:@.]|www)(?=\S)", "\\1\u2060", escaped)


def status_words(info: RunInfo, updated: float) -> tuple[str, Colour]:
    """How a run stands, and the badge colour: `live, step 41 of 60`, `stale for 5 min, ...`."""
    planned = info.config.get("steps")
    of = f" of {planned}" if isinstance(planned, int) and planned >= info.last_step else ""
    step = f"step {info.last_step}{of}" if info.last_step >= 0 else "before its first step"
    if info.status != "running":
        return f"{info.status}, {step}", _STATUS_COLOURS.get(info.status, "gray")
    silent = time.time() - updated
    if silent > STALE_S:
        return f"live, silent for {duration(silent)}, {step}", "orange"
    return f"live, {step}", "blue"


def duration(seconds: float) -> str:
    """`"45 s"`, `"12 min"`, `"3.4 h"`, `"2.1 days"`."""
    if not math.isfinite(seconds):
        return "-"
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min"), (172_800, 3600, "h")):
        if seconds < limit:
            value = seconds / size
            return f"{value:.1f} {unit}" if unit == "h" else f"{value:.0f} {unit}"
    return f"{seconds / 86_400:.1f} days"
