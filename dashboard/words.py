"""Words about runs, settings, episodes and values of metrics; foreign text made fit for labels."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any, Literal

import pandas as pd

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.metric_entry import POINTS, SHARE
from echoscope.store.status import RunStatus, Status
from echoscope.text.amounts import percent_in_digits

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


def value_words(key: str, value: float) -> str:
    """A value of a metric as people say it: a share as a percentage, no powers of ten.

    >>> value_words("rollout/success_rate", 0.015625), value_words("rollout/success_rate", 1.0)
    ('1.56 %', '100 %')
    >>> value_words("policy/entropy", 0.17712), value_words("policy/entropy", float("nan"))
    ('0.177', 'none')
    >>> value_words("rollout/response_length_mean", 3517.2), value_words("optim/lr", 0.00001)
    ('3,517', '0.00001')
    >>> value_words("policy/ref_kl", 2.5e9), value_words("policy/ref_kl", -1.2e-9)
    ('2,500 million', '-1.2e-09')
    """
    if not math.isfinite(value):
        return NONE
    unit = metric(key).unit
    if unit == POINTS:
        return percent_in_digits(value).replace(" %", " points")
    if unit == SHARE:
        return percent_in_digits(value)
    return number_words(value)


def number_words(value: float, *, is_signed: bool = False) -> str:
    """A number of three digits without powers of ten, and with its sign where it is a difference.

    >>> number_words(3560.4), number_words(0.5, is_signed=True), number_words(-3e6, is_signed=True)
    ('3,560', '+0.5', '-3 million')
    """
    if not math.isfinite(value):
        return NONE
    sign = "+" if is_signed and value > 0 else ""
    size = abs(value)
    if 1e6 <= size < 1e12:
        return f"{sign}{_three_digits(value / 1e6)} million"
    return sign + (_three_digits(value) if size < 1e6 else f"{value:.2e}")


def _three_digits(value: float) -> str:
    size = abs(value)
    if size >= 999.5:
        return f"{value:,.0f}"
    if 1e-7 <= size < 1e-3:
        return f"{float(f'{value:.3g}'):.10f}".rstrip("0")
    return f"{value:.3g}"


def interval_words(key: str, interval: tuple[float, float] | None) -> str:
    """Both ends of an interval, `none` without one."""
    if interval is None:
        return NONE
    return f"{value_words(key, interval[0])} to {value_words(key, interval[1])}"
