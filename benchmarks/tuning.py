"""Thresholds chosen on one half of the seeds and measured on the other.

A *knob* moves the distances, or the persistence, of channels that belong together. The sweep goes
through the knobs one after the other and keeps a value if it is better on the tuning half: fewer
false critical alarms, then more collapses called in time, then more lead. False alarms are those of
the setting itself and of the same with every distance a tenth smaller, so that nothing is chosen
that stands at the edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.bench.judging import JudgedRun, judge
from echoscope.diagnostics.bench.scores import Scores, score
from echoscope.diagnostics.judge.courses.channels import CHANNELS, ChannelSpec, at_distance

MARGIN = 0.9
"""Factor on all distances at which there must be no more false alarms either."""

Row = tuple[int, Mapping[str, float]]
Setting = Mapping[str, float]
"""Knob -> value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """What is turned together."""

    name: str
    channels: tuple[str, ...]
    moves: Literal["distance", "persist", "window"]
    values: tuple[float, ...]
    """Factors on the distance or the window; observations added to the persistence."""

    @property
    def neutral(self) -> float:
        """The value that changes nothing."""
        return 0.0 if self.moves == "persist" else 1.0


_RATES = ("closed", "format", "action", "eval_action")
_ENTROPY_DOWN = ("entropy_down", "conditional_entropy_down", "sibling_distance_down")
_DEPENDENCE = ("dependence_first", "dependence_all", "text_dependence")
_RETRIEVAL = ("retrieval", "text_retrieval")
_REPETITION = ("template", "duplicates", "loops", "echo")
_FACTORS = (0.6, 0.75, 0.875, 1.15, 1.35)
_SHARES = (0.7, 0.85, 0.95, 1.1, 1.2)
_DELTAS = (-1.0, 1.0)
_WINDOWS = (0.5, 0.7, 1.5)

KNOBS: tuple[Knob, ...] = (
    Knob(name="rates", channels=_RATES, moves="distance", values=_FACTORS),
    Knob(name="length", channels=("truncated", "length"), moves="distance", values=_FACTORS),
    Knob(name="entropy up", channels=("entropy_up",), moves="distance", values=_FACTORS),
    Knob(name="entropy down", channels=_ENTROPY_DOWN, moves="distance", values=_SHARES),
    Knob(name="dependence", channels=_DEPENDENCE, moves="distance", values=_SHARES),
    Knob(name="retrieval", channels=_RETRIEVAL, moves="distance", values=_SHARES),
    Knob(name="repetition", channels=_REPETITION, moves="distance", values=_FACTORS),
    Knob(name="spread", channels=("spread",), moves="distance", values=_SHARES),
    Knob(name="rates last", channels=_RATES, moves="persist", values=_DELTAS),
    Knob(name="entropy lasts", channels=("entropy_up",), moves="persist", values=_DELTAS),
    Knob(name="rates window", channels=_RATES, moves="window", values=(0.6, 1.4)),
    Knob(name="spread window", channels=("spread",), moves="window", values=_WINDOWS),
)


def specs_of(setting: Setting, *, margin: float = 1.0) -> tuple[ChannelSpec, ...]:
    """The channels with knobs turned; `margin` multiplies every distance."""
    turned = {name: value for name, value in setting.items() if value != _knob(name).neutral}
    out = []
    for spec in CHANNELS:
        for name, value in turned.items():
            if spec.name in _knob(name).channels:
                spec = _turned(spec, _knob(name), value)
        out.append(at_distance(spec, spec.raise_at * margin) if margin != 1.0 else spec)
    return tuple(out)


def _knob(name: str) -> Knob:
    return next(knob for knob in KNOBS if knob.name == name)


def _turned(spec: ChannelSpec, knob: Knob, value: float) -> ChannelSpec:
    if knob.moves == "persist":
        return replace(spec, persist=max(1, spec.persist + int(value)))
    if knob.moves == "window":
        return replace(spec, window=max(1, round(spec.window * value)))
    return at_distance(spec, spec.raise_at * value)


def split(runs: Sequence[LabelledRun]) -> tuple[list[LabelledRun], list[LabelledRun]]:
    """(tune on, report on): even seeds and odd ones. A run without a seed can be in neither."""
    even = [run for run in runs if run.seed is not None and run.seed % 2 == 0]
    odd = [run for run in runs if run.seed is not None and run.seed % 2 == 1]
    return even, odd


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A setting on a set of runs."""

    scores: Scores
    num_false_at_margin: int

    @property
    def worth(self) -> tuple[float, float, float, float]:
        """Larger is better, the first difference decides."""
        lead, error = self.scores.median_lead, self.scores.median_onset_error
        return (
            -self.scores.num_false - self.num_false_at_margin,
            self.scores.num_in_time,
            -math.inf if math.isnan(lead) else lead,
            -math.inf if math.isnan(error) else -error,
        )


class Sweep:
    """Runs whose rows were read once, and settings tried on them."""

    def __init__(self, runs: Sequence[LabelledRun]) -> None:
        self._runs = list(runs)
        self._rows: list[list[Row]] = [list(run.table.rows()) for run in self._runs]

    def judged(self, setting: Setting, *, margin: float = 1.0) -> list[JudgedRun]:
        """Every run, whole."""
        specs = specs_of(setting, margin=margin)
        pairs = zip(self._runs, self._rows, strict=True)
        return [judge(run, rows=rows, channels=specs) for run, rows in pairs]

    def measure(self, setting: Setting) -> Measured:
        """What the objective needs: critical alarms until a run's fate is decided."""
        specs, close = specs_of(setting), specs_of(setting, margin=MARGIN)
        calls = []
        num_false = 0
        for run, rows in zip(self._runs, self._rows, strict=True):
            until = math.inf if run.halved_step is None else run.halved_step
            kept = [row for row in rows if row[0] <= until + 1]
            calls.append(judge(run, rows=kept, channels=specs).critical)
            healthy = [row for row in rows if row[0] < run.healthy_until]
            if not run.is_collapsed and healthy:
                num_false += len(judge(run, rows=healthy, channels=close).critical.false_steps)
        return Measured(scores=score(calls), num_false_at_margin=num_false)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """Where a sweep ended."""

    setting: Mapping[str, float]
    """Only the knobs that were turned."""
    before: Measured
    after: Measured
    tried: tuple[tuple[str, float, Measured], ...]
    """(knob, value, what it gave) in order."""


def tune(
    sweep: Sweep,
    *,
    knobs: Sequence[Knob] = KNOBS,
    passes: int = 1,
    gate: Callable[[Setting], bool] = lambda _: True,
    progress: Callable[[int, int], None] | None = None,
) -> Tuned:
    """Coordinate sweep from the present thresholds; a value must be better to be kept.

    Args:
        gate: A setting that it refuses is not kept, however good.
    """
    total = 1 + passes * sum(len(knob.values) for knob in knobs)
    done = 0

    def measure(setting: Setting) -> Measured:
        nonlocal done
        scored = sweep.measure(setting)
        done += 1
        if progress is not None:
            progress(done, total)
        return scored

    setting: dict[str, float] = {}
    before = best = measure(setting)
    tried: list[tuple[str, float, Measured]] = []
    for _ in range(passes):
        for knob in knobs:
            for value in knob.values:
                scored = measure({**setting, knob.name: value})
                tried.append((knob.name, value, scored))
                if scored.worth > best.worth and gate({**setting, knob.name: value}):
                    best = scored
                    setting[knob.name] = value
    return Tuned(setting=setting, before=before, after=best, tried=tuple(tried))
