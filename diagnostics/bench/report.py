"""CollapseBench over a set of runs: the verdict, every rule, the regimes, and what else there is.

A set is synthetic runs, the recorded small runs, or a folder of labelled curves; all are measured
alike.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echoscope.text.strict_json import finite_or_none

from ..judge.alarms import RULE_ORDER
from ..judge.calibration import Calm, Count
from .baselines import BaselineResult, baselines, measure
from .cures.kinds import HERE as CURES
from .detectors.entry import Alert
from .harness import KINDS, SMALL_RUNS, LabelledRun, load_curves
from .judging import JudgedRun, Said, calibrated, counted_by_kinds, judge, said_with_less
from .scores import Scores, score
from .synthetic_runs import COLLAPSES, HEALTHY, make

RECORDED: dict[str, Path] = {
    "small": SMALL_RUNS,
    "cures": CURES / "curves",
    "truth": SMALL_RUNS / "truth",
}
"""Part -> the folder of its curves and labels."""
REPORT_SEED = 2000
"""Synthetic runs with seeds below this one were used while rules were written."""
TARGET_DETECTION = 0.95
TARGET_FALSE_PER_1000 = 1.0
SCORED_RULES = tuple(rule for rule in RULE_ORDER if rule != "STALE_ENGINE")
"""No labelled run says which version of the weights sampled it, so none can be called stale."""
MOST_WITH_LESS = 60
"""Runs of a set that are judged again with kinds of signals left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindScores:
    """Runs of one label."""

    num_runs: int
    critical: Scores
    num_watched: int
    """With a warning or worse, at any time."""
    num_critical: int
    """With a critical alarm, at any time: the only count for labels that count neither way."""
    num_kind_right: int

    def to_json(self) -> dict[str, Any]:
        """The scores of the verdict, and how many runs were watched and called."""
        return self.critical.to_json() | {
            "runs": self.num_runs,
            "watched": self.num_watched,
            "critical": self.num_critical,
            "kind_right": self.num_kind_right,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """A set of runs, judged."""

    name: str
    results: tuple[JudgedRun, ...]
    verdict: Scores
    num_kind_right: int
    by_label: Mapping[str, KindScores]
    regimes: Mapping[tuple[str, str], int]
    """(regime labelled, regime named) -> runs, where the label has one."""
    kinds: Mapping[tuple[str, str], int]
    """(label, most serious rule in the end or the state) -> collapsed runs."""
    calibration: Mapping[tuple[str, str], Count]
    """(`healthy` or `collapse`, confidence) -> how often it was wrong."""
    by_kinds: Mapping[tuple[Calm, int], Count]
    """(how calm, kinds of signals measured) -> how often a collapse followed, kinds left out."""
    beside: tuple[BaselineResult, ...]
    """Matched to the false alarms of the verdict."""

    @property
    def regimes_right(self) -> float:
        total = sum(self.regimes.values())
        right = sum(n for (made, named), n in self.regimes.items() if made == named)
        return right / total if total else math.nan

    def has_more_lead(self, other: BaselineResult) -> bool:
        """Do we lead by more than a baseline with no more false alarms than ours?

        Over all collapses, so that calling only the easy ones does not count as leading.
        """
        scores = other.matched_scores
        return scores is None or not scores.median_lead >= self.verdict.median_lead

    def to_json(self) -> dict[str, Any]:
        """Everything that was counted, and what was said about every run; no infinities, no NaN."""
        verdict = self.verdict
        return {
            "verdict": verdict.to_json() | {"kind_right": self.num_kind_right},
            "targets": {
                "detection": verdict.detection >= TARGET_DETECTION,
                "false_critical": verdict.false_per_1000 <= TARGET_FALSE_PER_1000,
                "more_lead": {b.name: self.has_more_lead(b) for b in self.beside if b.sweep},
            },
            "labels": {label: scores.to_json() for label, scores in self.by_label.items()},
            "rules": {rule: self._rule_json(rule) for rule in SCORED_RULES},
            "regimes": [
                {"labelled": labelled, "named": named, "runs": runs}
                for (labelled, named), runs in sorted(self.regimes.items())
            ],
            "regimes_right": finite_or_none(self.regimes_right),
            "kinds": [
                {"label": label, "named": named, "runs": runs}
                for (label, named), runs in sorted(self.kinds.items())
            ],
            "calibration": [
                {"said": what, "confidence": level, "wrong": wrong, "steps": steps}
                for (what, level), (wrong, steps) in sorted(self.calibration.items())
            ],
            "by_kinds_of_signals": [
                {"calm": calm, "kinds": num, "wrong": wrong, "steps": steps}
                for (calm, num), (wrong, steps) in sorted(self.by_kinds.items())
            ],
            "baselines": [baseline.to_json() for baseline in self.beside],
            "runs": [result.to_json() for result in self.results],
        }

    def _rule_json(self, rule: str) -> dict[str, Any]:
        """What one rule said: in collapses of the kind that it names, and over all runs."""
        said = [result.rules[rule] for result in self.results]
        named = (r for r in self.results if r.run.is_collapsed and KINDS.get(r.run.label) == rule)
        own = [result.rules[rule] for result in named]
        return {
            "own_kind": score([calls.critical for calls in own]).to_json() if own else None,
            "own_kind_warned_in_time": sum(calls.warning.is_in_time for calls in own),
            "critical": score([calls.critical for calls in said]).to_json(),
            "warning": score([calls.warning for calls in said]).to_json(),
        }


def made_set(seeds: Sequence[int]) -> list[LabelledRun]:
    """A synthetic run of every kind for every seed."""
    return [make(kind, seed) for kind in (*COLLAPSES, *HEALTHY) for seed in seeds]


def recorded_set(part: str) -> list[LabelledRun]:
    """The recorded runs of a part; none where they were not installed."""
    folder = RECORDED[part]
    return load_curves(folder) if (folder / "labels.json").is_file() else []


def report(
    name: str,
    runs: Sequence[LabelledRun],
    *,
    detectors: Mapping[str, Alert] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Judge every run of a set and count.

    Args:
        detectors: scored beside the verdict, by name.
        progress: Called with (done, of) runs.
    """
    results, with_less = [], []
    every = math.ceil(len(runs) / MOST_WITH_LESS)
    for n, run in enumerate(runs):
        results.append(judge(run))
        if n % every == 0:
            with_less.append((run, said_with_less(run)))
        if progress is not None:
            progress(n + 1, len(runs))
    return report_of(name, results, detectors=detectors, with_less=with_less)


def report_of(
    name: str,
    results: Sequence[JudgedRun],
    *,
    beside: bool = True,
    detectors: Mapping[str, Alert] | None = None,
    with_less: Sequence[tuple[LabelledRun, Sequence[Said]]] = (),
) -> BenchReport:
    """Count what was judged before, and unless told otherwise try what else there is.

    Args:
        detectors: scored beside the verdict, by name.
        with_less: What was said of the runs when kinds of signals were left out.
    """
    verdict = score([result.critical for result in results])
    runs = [result.run for result in results]
    scored = [
        BaselineResult(name=name, usual=math.nan, scores=measure(alert, runs))
        for name, alert in (detectors or {}).items()
    ]
    labels = dict.fromkeys(result.run.label for result in results)
    regimes = Counter(
        (r.run.regime.value, r.regime.value) for r in results if r.run.regime is not None
    )
    collapsed = [r for r in results if r.run.counts and r.run.is_collapsed]
    kinds = Counter((r.run.label, r.kinds[0] if r.kinds else r.state.value) for r in collapsed)
    allowed = 0.0 if math.isnan(verdict.false_per_1000) else verdict.false_per_1000
    return BenchReport(
        name=name,
        results=tuple(results),
        verdict=verdict,
        num_kind_right=sum(r.is_kind_right for r in collapsed),
        by_label={
            label: _of_label([r for r in results if r.run.label == label]) for label in labels
        },
        regimes=dict(regimes),
        kinds=dict(kinds),
        calibration=calibrated((r.run, r.said) for r in results),
        by_kinds=counted_by_kinds([*((r.run, r.said) for r in results), *with_less]),
        beside=(*scored, *(baselines(runs, allowed) if beside else ())),
    )


def _of_label(results: Sequence[JudgedRun]) -> KindScores:
    return KindScores(
        num_runs=len(results),
        critical=score([result.critical for result in results]),
        num_watched=sum(bool(result.watch.steps) for result in results),
        num_critical=sum(bool(result.critical.steps) for result in results),
        num_kind_right=sum(result.is_kind_right for result in results),
    )
