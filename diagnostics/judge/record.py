"""What a verdict holds, as a record and as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from echoscope.text.strict_json import finite_or_none, json_value

from .advice.actions import Action
from .alarms import RunState
from .claims import Claim, claim_json
from .regimes import Regime


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

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; what is not finite is null."""
        return {
            "state": self.state.value,
            "kinds": list(self.kinds),
            "regime": self.regime.value,
            "onset_step": self.onset_step,
            "onset_interval": None if self.onset_interval is None else list(self.onset_interval),
            "first_watch_step": self.first_watch_step,
            "first_critical_step": self.first_critical_step,
            "last_step": self.last_step,
            "confidence": self.confidence,
            "rests_on": self.rests_on,
            "had": list(self.had),
            "could_not_see": list(self.could_not_see),
            "nearest": list(self.nearest),
            "evidence": [
                {
                    "metric": e.metric,
                    "before": finite_or_none(e.before),
                    "after": finite_or_none(e.after),
                    "interval": None
                    if e.interval is None
                    else [finite_or_none(v) for v in e.interval],
                    "steps": list(e.steps),
                    "words": e.words,
                }
                for e in self.evidence
            ],
            "exemplars": [
                {
                    "trajectory_id": s.trajectory_id,
                    "turn": s.turn,
                    "spans": [list(span) for span in s.spans],
                    "note": s.note,
                }
                for s in self.exemplars
            ],
            "causes": list(self.causes),
            "actions": [
                {
                    "text": a.text,
                    "command": a.command,
                    "verb": a.verb,
                    "checkpoint": a.checkpoint,
                    "settings": {key: json_value(value) for key, value in a.settings.items()},
                    "why": a.why,
                    "can_cure": a.can_cure,
                    "is_trial": a.is_trial,
                }
                for a in self.actions
            ],
            "refuted_by": list(self.refuted_by),
            "notes": list(self.notes),
            "claims": claim_json(self.claims),
            "text": self.text,
        }
