"""The four regimes of reasoning, on the plane of H(Z|X) and dependence on the prompt.

| | dependence high | dependence low |
| --- | --- | --- |
| **H(Z given X) high** | diverse | template collapse |
| **H(Z given X) low** | compressed | low-entropy collapse |

H(Z|X) is per token, against the run's own start; dependence is I(X;Z) / ln N, against the best of
the run so far. Where an interval straddles a border the regime is undetermined, and it changes only
when two measurements in a row say so. The regime describes the reasoning, not the run: compressed
reasoning can be right, and template collapse can leave success alone for a hundred steps.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from .courses.course import median

ENTROPY_BORDER = 0.25
"""Share of the starting H(Z|X) below which it is low."""
DEPENDENCE_BORDER = 0.25
"""Share of the run's best dependence below which it is low."""
NO_DEPENDENCE = 0.05
"""Dependence below which it is low whatever the run's best: below a twentieth of ln N."""
OPENING = 3
"""First measurements whose median is the start."""
SOURCES: Mapping[str, tuple[str, str]] = {
    "first_turn": ("info/first_turn", "conditional_entropy_per_token"),
    "all_turns": ("info/all_turns", "conditional_entropy_per_token"),
    "text": ("text", "conditional_entropy"),
}
"""Where a point may come from, the best first: how its metrics begin, and what its entropy is
called. They measure on different scales."""


class Regime(StrEnum):
    DIVERSE = "diverse"
    TEMPLATE_COLLAPSE = "template_collapse"
    COMPRESSED = "compressed"
    LOW_ENTROPY_COLLAPSE = "low_entropy_collapse"
    UNDETERMINED = "undetermined"

    @property
    def words(self) -> str:
        return _TITLES[self]


_TITLES: Mapping[Regime, str] = {
    Regime.DIVERSE: "diverse reasoning",
    Regime.TEMPLATE_COLLAPSE: "template collapse",
    Regime.COMPRESSED: "compressed reasoning",
    Regime.LOW_ENTROPY_COLLAPSE: "low-entropy collapse",
    Regime.UNDETERMINED: "undetermined",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A place on the plane with its intervals; both ends equal where none is known."""

    entropy: float
    dependence: float
    entropy_interval: tuple[float, float]
    dependence_interval: tuple[float, float]
    source: str = "first_turn"
    """One of SOURCES."""


def point_of(values: Mapping[str, float]) -> Point | None:
    """Where a step's metrics put the reasoning; None if they do not say.

    Cross-scores of the first turn come first, then those of all turns, then the text's estimates.
    """
    for source, (prefix, entropy_name) in SOURCES.items():
        entropy = values.get(f"{prefix}/{entropy_name}", math.nan)
        dependence = values.get(f"{prefix}/dependence", math.nan)
        if not (math.isfinite(entropy) and math.isfinite(dependence)):
            continue
        num_prompts = values.get(f"{prefix}/num_prompts", math.nan)
        scale = math.log(num_prompts) if num_prompts > 1 else math.nan
        low = values.get(f"{prefix}/mutual_information_low", math.nan) / scale
        high = values.get(f"{prefix}/mutual_information_high", math.nan) / scale
        return Point(
            entropy=entropy,
            dependence=dependence,
            entropy_interval=(
                _or(values.get(f"{prefix}/{entropy_name}_low"), entropy),
                _or(values.get(f"{prefix}/{entropy_name}_high"), entropy),
            ),
            dependence_interval=(_or(low, dependence), _or(high, dependence)),
            source=source,
        )
    return None


def _or(value: float | None, fallback: float) -> float:
    return value if value is not None and math.isfinite(value) else fallback


def classify(point: Point, *, start_entropy: float, best_dependence: float) -> Regime:
    """The regime of one measurement.

    >>> at = Point(entropy=1.8, dependence=0.03, entropy_interval=(1.7, 1.9),
    ...     dependence_interval=(0.0, 0.06))
    >>> classify(at, start_entropy=2.0, best_dependence=0.7).value
    'template_collapse'
    """
    entropy_border, dependence_border = _borders(start_entropy, best_dependence)
    is_entropy_low = _side(point.entropy, point.entropy_interval, entropy_border)
    is_dependence_low = _side(point.dependence, point.dependence_interval, dependence_border)
    if is_entropy_low is None or is_dependence_low is None:
        return Regime.UNDETERMINED
    if is_dependence_low:
        return Regime.LOW_ENTROPY_COLLAPSE if is_entropy_low else Regime.TEMPLATE_COLLAPSE
    return Regime.COMPRESSED if is_entropy_low else Regime.DIVERSE


def _borders(start_entropy: float, best_dependence: float) -> tuple[float, float]:
    return ENTROPY_BORDER * start_entropy, max(DEPENDENCE_BORDER * best_dependence, NO_DEPENDENCE)


def _side(value: float, interval: tuple[float, float], border: float) -> bool | None:
    """Is it low? None if the interval has the border inside."""
    low, high = interval
    if low < border <= high:
        return None
    return value < border


@dataclass(slots=True, kw_only=True)
class RegimeTracker:
    """Follows the regime causally, with a hysteresis of two measurements.

    It keeps to the best source that it has seen: between cross-scores, the text's estimates say
    nothing, since theirs is another scale. A better source starts anew.
    """

    regime: Regime = Regime.UNDETERMINED
    best_dependence: float = 0.0
    source: str = ""
    """One of SOURCES; empty before the first measurement."""
    rows_since: int = 0
    """Rows of the log after the last measurement."""
    longest_gap: int = 0
    """Rows from one measurement to the next, at most."""
    _opening: list[float] = field(default_factory=list)
    _candidate: Regime = Regime.UNDETERMINED

    def observe(self, values: Mapping[str, float]) -> Regime:
        """Take in a step's metrics; without a measurement nothing changes."""
        point = point_of(values)
        self.rows_since += 1
        if point is None or not self._is_of_use(point.source):
            return self.regime
        self.longest_gap = max(self.longest_gap, self.rows_since)
        self.rows_since = 0
        if len(self._opening) < OPENING:
            self._opening.append(point.entropy)
        self.best_dependence = max(self.best_dependence, point.dependence)
        before = self._candidate
        self._candidate = classify(
            point, start_entropy=median(self._opening), best_dependence=self.best_dependence
        )
        if self._candidate is before:
            self.regime = before
        return self.regime

    @property
    def is_current(self) -> bool:
        """Whether the last measurement is not older than usual: it may be that none can be made."""
        return self.rows_since <= 2 * max(self.longest_gap, 1)

    def _is_of_use(self, source: str) -> bool:
        """Keeps to the best source; starts anew where a better one appears."""
        best_first = list(SOURCES)
        if self.source and best_first.index(source) > best_first.index(self.source):
            return False
        if source != self.source:
            self.source, self.best_dependence = source, 0.0
            self._opening, self._candidate = [], Regime.UNDETERMINED
        return True

    def borders(self) -> tuple[float, float]:
        """H(Z|X) in nats per token, and dependence, below which they count as low."""
        return _borders(median(self._opening), self.best_dependence)
