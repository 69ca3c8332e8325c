"""A CollapseBench report as JSON values: no infinities, no NaN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echoscope.text.strict_json import finite_or_none

from ..judge.alarms import RULE_ORDER
from .baselines import BaselineResult
from .harness import KINDS
from .judging import JudgedRun
from .report import TARGET_DETECTION, TARGET_FALSE_PER_1000, BenchReport, KindScores
from .scores import Scores, score

SCORED_RULES = tuple(rule for rule in RULE_ORDER if rule != "STALE_ENGINE")
"""No labelled run says which version of the weights sampled it, so none can be called stale."""


def report_json(report: BenchReport) -> dict[str, Any]:
    """Everything that was counted, and what was said about every run."""
    verdict = report.verdict
    return {
        "verdict": scores_json(verdict) | {"kind_right": report.num_kind_right},
        "targets": {
            "detection": verdict.detection >= TARGET_DETECTION,
            "false_critical": verdict.false_per_1000 <= TARGET_FALSE_PER_1000,
            "more_lead": {
                baseline.name: report.has_more_lead(baseline)
                for baseline in report.beside
                if baseline.sweep
            },
        },
        "labels": {label: _kind_json(baseline) for label, baseline in report.by_label.items()},
        "rules": {rule: _rule_json(rule, report.results) for rule in SCORED_RULES},
        "regimes": [
            {"labelled": labelled, "named": named, "runs": runs}
            for (labelled, named), runs in sorted(report.regimes.items())
        ],
        "regimes_right": finite_or_none(report.regimes_right),
        "kinds": [
            {"label": label, "named": named, "runs": runs}
            for (label, named), runs in sorted(report.kinds.items())
        ],
        "calibration": [
            {"said": what, "confidence": level, "wrong": wrong, "steps": steps}
            for (what, level), (wrong, steps) in sorted(report.calibration.items())
        ],
        "by_kinds_of_signals": [
            {"calm": calm, "kinds": num, "wrong": wrong, "steps": steps}
            for (calm, num), (wrong, steps) in sorted(report.by_kinds.items())
        ],
        "baselines": [_baseline_json(baseline) for baseline in report.beside],
        "runs": [_run_json(result) for result in report.results],
    }


def scores_json(scores: Scores) -> dict[str, Any]:
    """`median_lead` is null where half of the collapses or more are never called."""
    return {
        "collapsed": scores.num_collapsed,
        "detected": scores.num_in_time,
        "detection": finite_or_none(scores.detection),
        "median_lead": finite_or_none(scores.median_lead),
        "median_lead_of_called": finite_or_none(scores.median_lead_called),
        "median_onset_error": finite_or_none(scores.median_onset_error),
        "false": scores.num_false,
        "healthy_steps": scores.num_healthy_steps,
        "false_per_1000_steps": finite_or_none(scores.false_per_1000),
        "controls": scores.num_controls,
        "controls_alarmed": scores.num_controls_alarmed,
    }


def _kind_json(scores: KindScores) -> dict[str, Any]:
    return scores_json(scores.critical) | {
        "runs": scores.num_runs,
        "watched": scores.num_watched,
        "critical": scores.num_critical,
        "kind_right": scores.num_kind_right,
    }


def _rule_json(rule: str, results: Sequence[JudgedRun]) -> dict[str, Any]:
    """What one rule said: in collapses of the kind that it names, and over all runs."""
    said = [result.rules[rule] for result in results]
    named = (r for r in results if r.run.is_collapsed and KINDS.get(r.run.label) == rule)
    own = [result.rules[rule] for result in named]
    return {
        "own_kind": scores_json(score([calls.critical for calls in own])) if own else None,
        "own_kind_warned_in_time": sum(calls.warning.is_in_time for calls in own),
        "critical": scores_json(score([calls.critical for calls in said])),
        "warning": scores_json(score([calls.warning for calls in said])),
    }


def _baseline_json(result: BaselineResult) -> dict[str, Any]:
    kept = result.matched_scores
    return {
        "name": result.name,
        "threshold": finite_or_none(result.usual),
        **scores_json(result.scores),
        "matched": None if kept is None else {"threshold": result.matched, **scores_json(kept)},
        "sweep": [
            {"threshold": value, **scores_json(threshold_scores)}
            for value, threshold_scores in result.sweep
        ],
    }


def _run_json(result: JudgedRun) -> dict[str, Any]:
    run = result.run
    return {
        "name": run.name,
        "label": run.label,
        "seed": run.seed,
        "counts": run.counts,
        "collapsed": run.is_collapsed,
        "onset_labelled": run.onset_step,
        "halved_step": run.halved_step,
        "state": result.state.value,
        "first_watch_step": result.first_watch_step,
        "first_critical_step": result.first_critical_step,
        "false_critical_steps": list(result.critical.false_steps),
        "detected": run.is_collapsed and result.critical.is_in_time,
        "lead": finite_or_none(result.critical.lead) if run.is_collapsed else None,
        "kinds": list(result.kinds),
        "kind_right": result.is_kind_right,
        "onset_step": result.critical.onset_step,
        "regime_labelled": None if run.regime is None else run.regime.value,
        "regime": result.regime.value,
    }
