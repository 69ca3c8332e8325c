"""Words about runs, settings and episodes, and foreign text made fit for Streamlit's labels."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from echoscope.store.status import RunStatus, Status

from .escaping import visible

_MARKDOWN = re.compile(r"([\\`*_{}\[\]()#+\-.!|<>~$:@^=&\"'/])")
_ACTIVE = re.compile(r"(\\:(?![0-9]+(?!\\:|[0-9]))|\\@|www)(?=\S)")
"""Before what becomes a link, an emoji or an icon: nowhere else, so that keys and numbers can be
copied as they are shown."""
NONE = "none"
"""In a table, where there is no value: nothing was measured, nobody said anything."""
Colour = Literal["red", "orange", "blue", "green", "gray"]
"""Of a Streamlit badge."""
STATUS_COLOURS: Mapping[str, Colour] = {
    Status.LIVE: "blue",
    Status.WAITING: "blue",
    Status.PAUSED: "orange",
    Status.STALE: "orange",
    Status.IMPORTED: "gray",
    Status.IMPORTING: "blue",
    Status.FINISHED: "gray",
    Status.STOPPED: "gray",
    Status.INTERRUPTED: "orange",
    Status.FAILED: "red",
    Status.CRASHED: "red",
}
SPLITS: Mapping[str, str] = {
    "train": "Training",
    "import": "Imported",
    "eval": "Evaluation",
    "probe": "Probe",
}
"""Split -> its label, in the order in which the replay prefers them."""
NEVER_TRAINED = ("eval", "probe")
"""Splits that no update ever sees."""
UNKNOWN = "unknown"


def plain(text: str, limit: int = 200) -> str:
    """Hostile text as a Streamlit label: shown as it is, on one line, none of it Markdown.

    Signs are escaped; where that is not enough (autolinks, emoji and icon names) an invisible word
    joiner keeps them apart.
    """
    safe = visible(" ".join(text.split()), limit)
    escaped = _MARKDOWN.sub(r"\\\1", safe)
    return _ACTIVE.sub("\\1\u2060", escaped)


def status_words(stands: RunStatus, last_step: int, steps: int, now: float) -> tuple[str, Colour]:
    """How a run stands, and the colour of its badge: `paused by root for 12 min, step 37 of 80`.

    Args:
        steps: How many the run will take; 0 where that is not known.
    """
    text = visible(stands.words(now), 200)
    if last_step >= 0:
        text += f", step {last_step}" + (f" of {steps}" if steps >= max(1, last_step) else "")
    return text, STATUS_COLOURS[stands.status]


def setting_words(value: Any) -> str:
    """A value as a person would type it."""
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {setting_words(entry)}" for name, entry in value.items()) or NONE
    return json.dumps(value)


def success_word(value: object) -> str:
    """solved, failed, or unknown where neither the task nor the file says."""
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN
    return "solved" if value else "failed"


def kept_word(value: object, split: object = "train") -> str:
    """kept, dropped, never trained on; of our trainer pending until the update has seen it."""
    if split in NEVER_TRAINED:
        return "never trained on"
    if value is None or pd.isna(value):  # type: ignore[call-overload]
        return UNKNOWN if split == "import" else "pending"
    return "kept" if value else "dropped"
