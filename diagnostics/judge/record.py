"""What a verdict holds, as a record and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from echoscope.text.strict_json import json_value

from .advice.actions import Action
from .alarms import RunState
from .claims import Claim
from .regimes import Regime

THEN = ", then "
"""In `Evidence.averaged`, between what the level before and what the level after is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One metric that moved."""

    metric: str
    before: float
    after: float
    interval: tuple[float, float] | None
    """Of `after`, nominal 95 %; None if the noise is not known."""
    steps: tuple[int, int]
    """Where `before` and `after` were measured."""
    averaged: str = ""
    """What both are made of, such as `median of 2 rows`; empty for values of these steps. With a
    level at the start: `median of the first 10 rows, then mean of 10 rows`."""
    words: str = ""
    """The same in words: `success on 128 tasks: 85 % (step 20) -> 54 % (step 42)`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A place in a stored trajectory that shows a finding."""

    trajectory_id: str
    turn: int
    spans: tuple[tuple[int, int], ...] = ()
    """Half-open character spans of the turn's response."""
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is happening to a run; `to_json()` is what `diagnose --json` prints."""

    state: RunState
    kinds: tuple[str, ...]
    """Rules that are raised, most serious first."""
    regime: Regime
    onset_step: int | None
    onset_interval: tuple[int, int] | None
    first_watch_step: int | None
    first_critical_step: int | None
    last_step: int | None
    confidence: str
    """high, medium, low or none: see `calibration.py` for how often each was right."""
    rests_on: str
    had: tuple[str, ...]
    could_not_see: tuple[str, ...]
    nearest: tuple[str, ...] = ()
    """Signals at least half way to an alarm, by their label, the nearest first."""
    evidence: tuple[Evidence, ...] = ()
    exemplars: tuple[Shown, ...] = ()
    causes: tuple[str, ...] = ()
    actions: tuple[Action, ...] = ()
    """What to do, the first first; `verb`, `checkpoint` and `settings` are what a button needs."""
    refuted_by: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    """What is so, beyond chance: all that the text says in numbers."""
    text: str = ""
    has_ended: bool = False
    """No step follows the last one; False also where that is not known."""

    @property
    def state_words(self) -> str:
        """The state as people read it; `state` is its name in JSON."""
        return self.state.words(has_ended=self.has_ended)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not finite is null."""
        return cast(dict[str, Any], json_value(self))
