"""What an entry of CollapseBench is: an alert beside ours, in a file of its own in this folder.

Each file holds `ENTRIES`; there is no other list. All alerts are causal: what they say of a step
does not depend on later ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import numpy as np

from echoscope.store.records import BoolArray, IntArray64

from ..harness import LabelledRun

Alert = Callable[[LabelledRun], tuple[int, ...]]
"""A run -> the steps at which alarms begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An alert, with its threshold if it has one."""

    name: str
    alert: Callable[[float], Alert]
    """The alert with a threshold, which means nothing where there is none."""
    usual: float = math.nan
    """Its threshold as published, or as people set it; NaN where there is none."""
    grid: tuple[float, ...] = ()
    """The thresholds to try."""
    recorded: str = ""
    """Name under which the source recorded this very rule."""

    def as_used(self, run: LabelledRun) -> tuple[int, ...]:
        """At its usual threshold: as recorded by the source where it was, else computed."""
        recorded = run.recorded_stops.get(self.recorded)
        return self.alert(self.usual)(run) if recorded is None else (recorded,)


@cache
def entries() -> tuple[Entry, ...]:
    """Of all files of this folder, by the files' names."""
    here = import_module(__package__ or "")
    modules = [
        import_module(f"{here.__name__}.{each.name}") for each in iter_modules(here.__path__)
    ]
    return tuple(entry for module in modules for entry in getattr(module, "ENTRIES", ()))


def begins(steps: IntArray64, is_on: BoolArray, times: int) -> tuple[int, ...]:
    """The steps at which a condition has held so many times in a row, once per stretch.

    >>> begins(np.arange(8), np.array([0, 1, 1, 1, 0, 1, 1, 0], dtype=bool), 2)
    (2, 6)
    """
    if len(is_on) < times:
        return ()
    total = np.concatenate([[0], np.cumsum(is_on)])
    is_full = total[times:] - total[:-times] == times
    is_new = is_full & ~np.concatenate([[False], is_full[:-1]])
    return tuple(int(step) for step in steps[times - 1 :][is_new])


def spaced(low: float, high: float, number: int = 60) -> tuple[float, ...]:
    """Thresholds, evenly on a logarithmic scale."""
    return tuple(float(value) for value in np.geomspace(low, high, number))
