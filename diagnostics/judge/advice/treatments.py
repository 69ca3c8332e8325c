"""Treatments: what may be changed about a run that collapses, as settings in our own names.

A treatment is data (`treatments.toml`): which settings it changes, and how the new value follows
from the present one.
CureBench measures each of them (`diagnostics/bench/cures/`), advice offers them by what was
measured (`measured.py`), and whoever applies one asks it for the settings of a run.

    >>> run = {"optim.lr": 0.003, "loss.entropy_coef": 0.0}
    >>> treatment("lr-third").settings(run.get), treatment("no-entropy").settings(run.get)
    ({'optim.lr': 0.001}, {})
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Lookup = Callable[[str], Any]
"""Dotted key to the value that a run has; None where it has no such setting."""

ALL = ".*."
"""In a key: every entry of the list before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TreatmentChange:
    """A new value of one setting; one of `to`, `times`, `at_least` and `at_most`."""

    key: str
    to: Any = None
    times: float = math.nan
    """The present number times this; counts are rounded, other numbers keep two digits."""
    at_least: float = math.nan
    at_most: float = math.nan

    @property
    def aim(self) -> Any:
        """The new value or its limit, whatever the present one is; None where it is a multiple."""
        if self.to is not None:
            return list(self.to) if isinstance(self.to, tuple) else self.to
        limits = (limit for limit in (self.at_least, self.at_most) if math.isfinite(limit))
        return next(limits, None)

    def value(self, present: Any) -> Any:
        """The new value; the present one where nothing is to change."""
        if isinstance(self.to, tuple):
            return list(self.to)
        if not _is_number(present) or self.to is not None:
            return present if self.to is None else self.to
        if math.isfinite(self.times):
            new = present * self.times
            return round(new) if isinstance(present, int) else two_digits(new)
        limit = self.at_least if math.isfinite(self.at_least) else self.at_most
        is_lower = present < limit
        return limit if is_lower == math.isfinite(self.at_least) and present != limit else present


@dataclass(frozen=True, slots=True, kw_only=True)
class Treatment:
    """Something to change about a run that is continued from a checkpoint."""

    name: str
    """Of one or two words; unique, and what records and the advice table call it."""
    label: str
    """What is done, after "continue with"."""
    why: str
    """How it should help, as one sentence."""
    changes: tuple[TreatmentChange, ...] = ()
    is_of_task: bool = False
    """It changes the task, not the training."""
    only_if: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Settings, and the values of which each must have one for this to make sense."""

    def settings(self, present: Lookup) -> dict[str, Any]:
        """What it changes in a run, by dotted key; empty where it would change nothing."""
        if any(present(key) not in values for key, values in self.only_if.items()):
            return {}
        changed = {}
        for change in self.changes:
            for key in _keys(change.key, present):
                old = present(key)
                new = change.value(old)
                if old is not None and new != old:
                    changed[key] = new
        return changed


def _keys(key: str, present: Lookup) -> Sequence[str]:
    """The key, or one for every entry of the list that it asks for."""
    before, is_list, after = key.partition(ALL)
    if not is_list:
        return [key]
    entries = present(before)
    count = len(entries) if isinstance(entries, Sequence) and not isinstance(entries, str) else 0
    return [f"{before}.{index}.{after}" for index in range(count)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def two_digits(value: float) -> float:
    """Two significant digits.

    >>> two_digits(0.0013333), two_digits(0.00001)
    (0.0013, 1e-05)
    """
    return float(f"{value:.1e}")


UNTREATED = "untreated"
"""The arm that is not even rewound: the run as it goes on."""
REWOUND = "rewound"
PLACEBO = "placebo"
ADVICE = "advice"
"""The arm that does what the verdict suggested first."""
GUARDED = "guarded"
"""The arm that is trained from the first step with a guard, which treats it by itself."""
ASKED = "asked"
"""As guarded, by a guard that asks, and a person who agrees to all that it proposes."""
GUARDS: Mapping[str, str] = {GUARDED: "auto", ASKED: "ask"}
"""Arms with a guard, and its mode."""


def _read(group: str) -> tuple[Treatment, ...]:
    """The entries of a group of `treatments.toml`, in their order."""
    entries = tomllib.loads(TABLE.read_text(encoding="utf-8"))[group]
    return tuple(
        Treatment(name=name, **entry | {"changes": tuple(map(_change, entry.get("changes", ())))})
        for name, entry in entries.items()
    )


def _change(entry: Mapping[str, Any]) -> TreatmentChange:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()
    }
    return TreatmentChange(**fields)


TABLE = Path(__file__).with_name("treatments.toml")
CONTROLS = _read("controls")
"""What every treatment is compared with."""
TREATMENTS = _read("treatments")
_BY_NAME: Mapping[str, Treatment] = {each.name: each for each in (*CONTROLS, *TREATMENTS)}


def treatment(name: str) -> Treatment:
    """The treatment of that name.

    Raises:
        KeyError: there is none.
    """
    return _BY_NAME[name]
