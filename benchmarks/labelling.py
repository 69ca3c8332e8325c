"""What became of a run, read from its outcome: the rules behind the labels of the recorded runs.

They look at the whole run, its end included, and at its own evaluations and measurements; no alarm
and no channel of the alarm engine is asked.

A run has **collapsed** if evaluation success fell below half of its running peak and never came
back, for at least its last two evaluations. What kind, by what is true over its last third, or over
what came after success was lost there (in this order, the first that holds; format at any time,
since replies may parse again by accident), "start" being the first five steps or two measurements:

| label | what is true |
| --- | --- |
| entropy_explosion | entropy per token at least four times the start and at least 1 nat |
| format_collapse | fewer than 80 % of replies parse, over the worst five steps in a row |
| echo_trap | reward std below a quarter of the start; siblings nearly equal 20 points more often |
| template_collapse | I(X;Z) and retrieval below a third of their best, H(Z given X) above half |
| other_collapse | none of these |

A run that has not is **template_plateau** if the template signs hold over the last third,
**slow_degradation** if the mean of its last three evaluations is below 75 % of the peak, else
**healthy**.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echoscope.diagnostics.bench.harness import is_halved, success_of
from echoscope.diagnostics.read.table import MetricTable

Values = NDArray[np.float64]

LOST_EVALUATIONS = 2
DEGRADED = 0.75
FALLING = 0.75
START_STEPS, START_MEASUREMENTS = 5, 2
EXPLODED_FACTOR, EXPLODED_NATS = 4.0, 1.0
BROKEN_FORMAT = 0.8
SPREAD_LEFT, MORE_DUPLICATES = 0.25, 0.2
DEPENDENCE_LEFT, ENTROPY_KEPT = 1 / 3, 0.5

ENTROPY = "policy/entropy"
FORMAT = "rollout/format_valid_frac"
SPREAD = "reward/group_std_mean"
DUPLICATES = "text/near_duplicate_frac"
INFORMATION = "info/first_turn/mutual_information"
RETRIEVAL = "info/first_turn/retrieval_accuracy@1"
CHANCE = "info/first_turn/retrieval_chance@1"
CONDITIONAL = "info/first_turn/conditional_entropy_per_token"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A label with what it rests on."""

    label: str
    collapsed: bool
    onset: tuple[int, str] | None
    """First step from which the kind's sign stays more than half way there, and the sign; or from
    which success stays below three quarters of its peak, if that is earlier."""
    interval: tuple[int, int] | None
    """Last evaluation before success had halved for good, and the first after."""
    regime: str | None
    """None where I(X;Z) was not measured."""
    evidence: str
    facts: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        """As `labels.json` has it."""
        onset = None if self.onset is None else {"step": self.onset[0], "sign": self.onset[1]}
        lost = None
        if self.interval is not None:
            rule = "first evaluation below half of its running peak and never above again"
            lost = {"interval": list(self.interval), "rule": rule}
        return {
            "label": self.label,
            "collapsed": self.collapsed,
            "onset_early": onset,
            "onset_performance": lost,
            "regime": self.regime,
            "evidence": self.evidence,
            "facts": self.facts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """A metric where it was measured."""

    steps: NDArray[np.int64]
    values: Values

    @property
    def is_there(self) -> bool:
        return bool(len(self.values))

    def since(self, step: int) -> Values:
        return self.values[self.steps >= step]

    def start(self, count: int) -> float:
        return float(np.mean(self.values[:count])) if self.is_there else math.nan

    def crossing(self, is_past: Callable[[Values], NDArray[np.bool_]]) -> int | None:
        """First step from which on it stays past; None if it is not at the end."""
        quiet = np.flatnonzero(~is_past(self.values))
        first = int(quiet[-1]) + 1 if len(quiet) else 0
        return int(self.steps[first]) if first < len(self.steps) else None


def curve(table: MetricTable, key: str) -> Curve:
    """Empty where the table lacks the metric."""
    steps, values = table.measured(key)
    return Curve(steps=steps, values=values)


def lost_for_good(success: Curve) -> tuple[int, int] | None:
    """(last evaluation before, first after) success had halved for good; None if it did not."""
    is_low = is_halved(success.values)
    high = np.flatnonzero(~is_low)
    if not len(high) or len(is_low) - 1 - high[-1] < LOST_EVALUATIONS:
        return None
    return int(success.steps[high[-1]]), int(success.steps[high[-1] + 1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What the rules ask about a run."""

    entropy_start: float
    entropy: float
    format_worst: float
    spread_start: float
    spread: float
    duplicates_start: float
    duplicates: float
    information_best: float
    information: float
    retrieval_best: float
    retrieval: float
    """Above chance."""
    conditional_start: float
    conditional: float

    @property
    def is_exploded(self) -> bool:
        return self.entropy >= max(EXPLODED_FACTOR * self.entropy_start, EXPLODED_NATS)

    @property
    def is_broken(self) -> bool:
        return self.format_worst < BROKEN_FORMAT

    @property
    def is_echoing(self) -> bool:
        is_same = self.duplicates >= self.duplicates_start + MORE_DUPLICATES
        return self.spread < SPREAD_LEFT * self.spread_start and is_same

    @property
    def is_template(self) -> bool:
        return (
            self.information < DEPENDENCE_LEFT * self.information_best
            and self.retrieval < DEPENDENCE_LEFT * self.retrieval_best
            and self.conditional >= ENTROPY_KEPT * self.conditional_start
        )


def facts_since(table: MetricTable, step: int) -> Facts:
    """Medians from a step on, beside the start and the best."""
    information, conditional = curve(table, INFORMATION), curve(table, CONDITIONAL)
    accuracy, chance = curve(table, RETRIEVAL), curve(table, CHANCE)
    margin = Curve(steps=accuracy.steps, values=accuracy.values - chance.values)
    entropy, spread = curve(table, ENTROPY), curve(table, SPREAD)
    duplicates = curve(table, DUPLICATES)
    return Facts(
        entropy_start=entropy.start(START_STEPS),
        entropy=_median(entropy.since(step)),
        format_worst=_worst(curve(table, FORMAT).values),
        spread_start=spread.start(START_STEPS),
        spread=_median(spread.since(step)),
        duplicates_start=duplicates.start(START_MEASUREMENTS),
        duplicates=_median(duplicates.since(step)),
        information_best=_best(information.values),
        information=_median(information.since(step)),
        retrieval_best=_best(margin.values),
        retrieval=_median(margin.since(step)),
        conditional_start=conditional.start(START_MEASUREMENTS),
        conditional=_median(conditional.since(step)),
    )


def _median(values: Values) -> float:
    return float(np.median(values)) if len(values) else math.nan


def _best(values: Values) -> float:
    """Highest mean of two measurements in a row: one may be luck."""
    pairs = (values[1:] + values[:-1]) / 2
    return float(pairs.max()) if len(pairs) else math.nan


def _worst(values: Values) -> float:
    """Lowest mean over five steps."""
    width = min(START_STEPS, len(values))
    if not width:
        return math.nan
    return float(np.convolve(values, np.full(width, 1 / width), mode="valid").min())


def _kind(*stretches: Facts) -> str:
    """The first sign that holds over one of the stretches."""
    if any(facts.is_exploded for facts in stretches):
        return "entropy_explosion"
    if any(facts.is_broken for facts in stretches):
        return "format_collapse"
    if any(facts.is_echoing for facts in stretches):
        return "echo_trap"
    is_template = any(facts.is_template for facts in stretches)
    return "template_collapse" if is_template else "other_collapse"


def outcome_of(table: MetricTable) -> Outcome:
    """The label of a run, by the rules above."""
    steps, rates = success_of(table, "eval/")
    success = Curve(steps=steps, values=rates)
    interval = lost_for_good(success)
    last_third = int(table.steps[0] + 2 * (table.steps[-1] - table.steps[0]) / 3)
    facts = facts_since(table, last_third)
    if interval is not None:
        label = _kind(facts, facts_since(table, max(last_third, interval[1])))
    elif facts.is_template:
        label = "template_plateau"
    else:
        late = float(np.mean(success.values[-3:]))
        label = "slow_degradation" if late < DEGRADED * success.values.max() else "healthy"
    peak = int(success.values.argmax())
    fact_values = {
        "success_first": success.values[0],
        "success_peak": success.values[peak],
        "success_peak_step": success.steps[peak],
        "success_last": success.values[-1],
        "format_worst": facts.format_worst,
        "entropy_start": facts.entropy_start,
        "entropy_late": facts.entropy,
        "information_best": facts.information_best,
        "information_late": facts.information,
        "spread_start": facts.spread_start,
        "spread_late": facts.spread,
    }
    return Outcome(
        label=label,
        collapsed=interval is not None,
        onset=_first_sign(success, interval, _onset(table, label, facts)),
        interval=interval,
        regime=_regime(facts),
        evidence=_words(success, facts),
        facts={
            key: float(f"{value:.4g}") for key, value in fact_values.items() if np.isfinite(value)
        },
    )


def _onset(table: MetricTable, label: str, facts: Facts) -> tuple[int, str] | None:
    """Half way to what the label asks for (entropy: as a factor), and no way back."""
    if label == "entropy_explosion":
        level = math.sqrt(EXPLODED_FACTOR) * facts.entropy_start
        step = curve(table, ENTROPY).crossing(lambda v: v >= level)
        return None if step is None else (step, f"entropy per token stays above {level:.2g} nats")
    if label == "format_collapse":
        level = (1 + BROKEN_FORMAT) / 2
        low = np.flatnonzero(curve(table, FORMAT).values < level)
        if not len(low):
            return None
        step = int(curve(table, FORMAT).steps[low[0]])
        return step, f"first step with less than {level:.0%} valid replies"
    if label == "echo_trap":
        level = facts.spread_start * (1 + SPREAD_LEFT) / 2
        step = curve(table, SPREAD).crossing(lambda v: v < level)
        return None if step is None else (step, f"reward std stays below {level:.2g}")
    if label in ("template_collapse", "template_plateau"):
        level = facts.information_best * (1 + DEPENDENCE_LEFT) / 2
        step = curve(table, INFORMATION).crossing(lambda v: v < level)
        return None if step is None else (step, f"I(X;Z) stays below {level:.2g} nats")
    return None


def _first_sign(
    success: Curve, interval: tuple[int, int] | None, onset: tuple[int, str] | None
) -> tuple[int, str] | None:
    """The kind's sign, or success on its way down where that came first: then there was one."""
    if interval is None:
        return onset
    level = FALLING * success.values.max()
    step = success.crossing(lambda v: v < level)
    fallen = interval[1] if step is None else min(step, interval[1])
    if onset is not None and onset[0] <= fallen:
        return onset
    sentence = f"success stays below {level:.2g}"
    return fallen, sentence if onset is None else f"{sentence}; step {onset[0]}: {onset[1]}"


def _regime(facts: Facts) -> str | None:
    """On the plane of H(Z given X) and I(X;Z), late in the run; see `judge/regimes.py`."""
    if math.isnan(facts.information) or math.isnan(facts.conditional):
        return None
    is_diverse = facts.conditional >= facts.conditional_start / 4
    is_dependent = facts.information >= facts.information_best / 4
    if is_dependent:
        return "diverse" if is_diverse else "compressed"
    return "template_collapse" if is_diverse else "low_entropy_collapse"


def _words(success: Curve, facts: Facts) -> str:
    return (
        f"success {success.values[0]:.2f} -> peak {success.values.max():.2f} -> "
        f"{success.values[-1]:.2f}; valid replies at worst {facts.format_worst:.2f}; entropy per "
        f"token {facts.entropy_start:.2f} -> {facts.entropy:.2f}; I(X;Z) best "
        f"{facts.information_best:.2f} -> {facts.information:.2f}; reward std "
        f"{facts.spread_start:.2f} -> {facts.spread:.2f}; equal siblings "
        f"{facts.duplicates_start:.2f} -> {facts.duplicates:.2f}"
    )
