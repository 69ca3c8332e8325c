"""What a verdict claims: typed records with everything that a sentence about them needs.

A verdict, an alarm, a banner, a tile and a report print claims and nothing else, so that one number
has one interval everywhere. Each class says when its claim is false; `benchmarks/truth` counts that
on runs whose truth is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Direction = Literal["rise", "fall"]
FateKind = Literal["crashed", "paused", "stopped", "silent", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The mean of a metric over some steps.

    False if the true mean of these steps lies outside of the interval (nominal 95 %; less where the
    level was chosen as an extreme: what was measured has one interval, and what the choice costs is
    part of a `Change`). Success on fixed tasks is meant for all tasks like them; a return, of whose
    tasks nothing is known, for these alone.
    """

    claim: str = field(default="level", init=False)
    metric: str
    value: float
    low: float
    high: float
    steps: tuple[int, int]
    """First and last step of the mean."""
    num_points: int
    """Measurements in it."""
    trials: float = 0.0
    """Outcomes behind it: episodes, or tasks, each as often as it was played; 0 where nobody says
    how many."""
    is_reconstructed: bool = False
    """Made up from parts, as a sum of reward terms: it may be shown, and never acts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A metric moved from one level to another, beyond chance: fixed tasks are the same in both.

    False if the true difference is zero or has the other sign, if it lies outside of `low` to
    `high` (nominal 95 %), if it began outside of `began` (nominal 90 %), or if it still falls and
    the later half of the true values in `after` is not lower than the earlier half.
    """

    claim: str = field(default="change", init=False)
    before: Level
    after: Level
    low: float
    high: float
    """Interval of `after` minus `before`."""
    began: tuple[int, int] | None = None
    """First and last step at which it may have begun; None where that cannot be told."""
    still_falls: bool = False
    """It is a fall that has not come to rest: `after` falls within itself."""

    @property
    def metric(self) -> str:
        return self.after.metric

    @property
    def direction(self) -> Direction:
        return "rise" if self.after.value > self.before.value else "fall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lost:
    """Of what was held at most a part is left, for some time.

    False if the true mean of `change.after` is above `most_left` times what was held, or if what
    was held was not.
    """

    claim: str = field(default="lost", init=False)
    change: Change
    most_left: float
    """Upper end of the share that is left: of a rate of its best, of a return of what it gained."""
    num_points: int
    """Measurements in a row that are so low."""

    @property
    def metric(self) -> str:
        return self.change.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Dip:
    """A metric fell, and is above its low point again, beyond chance.

    False if either direction is, or if the low point was not so low.
    """

    claim: str = field(default="dip", init=False)
    held: Level
    bottom: Level
    now: Level
    is_rising: bool
    """It still rises; else it is level, on the way or back."""
    is_back: bool
    """What is now does not differ from what was held, beyond chance."""

    @property
    def metric(self) -> str:
        return self.now.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """One measure rises while another falls over the same steps, both beyond chance.

    False if either direction is.
    """

    claim: str = field(default="disagreement", init=False)
    up: Change
    down: Change
    terms: tuple[Change, ...] = ()
    """Terms of the reward that rose meanwhile, the largest rise first."""

    @property
    def metric(self) -> str:
        return self.down.metric


@dataclass(frozen=True, slots=True, kw_only=True)
class Independent:
    """The replies do not depend on the prompt.

    False if a dependence beyond chance exists at these steps.
    """

    claim: str = field(default="independent", init=False)
    since: int | None
    """First step of which this holds; None if it has held from the start."""
    is_alike: bool | None
    """Nearly the same text is written; or the text varies, but not with the prompt; None where
    nobody measured it."""
    num_points: int

    @property
    def metric(self) -> str:
        return "text/retrieval_accuracy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How a run ended, or why it waits.

    Attributes:
        kind: `crashed`, `paused`, `stopped`, `silent` or `failed`.
        words: one sentence: what happened, at which step, by whom.
        way_on: one sentence: how to go on, and what is played again; empty where nothing is to do.
        command: as a person types it; empty where there is none.
        alarm: the rule whose alarm paused or stopped it; empty where none did.
    """

    claim: str = field(default="fate", init=False)
    kind: FateKind
    words: str
    way_on: str = ""
    command: str = ""
    alarm: str = ""

    @property
    def metric(self) -> str:
        return ""


Claim = Level | Change | Lost | Dip | Disagreement | Independent | Fate
