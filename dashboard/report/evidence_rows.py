"""The numbers under a verdict as rows of a table: its claims, then what else its alarms rest on.

The page Diagnosis, the report and the notebook print these, so that one number has one interval.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.judge.claims import Change, Claim, Dip, Disagreement, Level, Lost
from echoscope.diagnostics.judge.record import THEN, Evidence, Verdict
from echoscope.diagnostics.judge.rules.base import trials_words
from echoscope.diagnostics.metric_entry import SHARE
from echoscope.text.amounts import step_words

from ..charts.tiles import claim_words
from ..words import interval_words, value_words


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceRow:
    """One metric, before and now."""

    metric: str
    before: float
    """NaN where nothing changed, or where the alarm knows a limit and no level before."""
    after: float
    interval: tuple[float, float] | None
    """Of `after`, 95 %; None where the noise is not known."""
    steps: tuple[int, int]
    """First step of `before` and last of `after`."""
    levels: tuple[Level, ...]
    """`before`, if there is one, and `after`, with their steps. An end that is not known is NaN."""
    where: str
    """The steps of both, and what the newer value rests on."""
    sentence: str
    is_proof: bool
    """An alarm rests on it, or it changed: a level that stays is context."""

    def cells(self) -> dict[str, str]:
        """As pages show it: column -> text."""
        return {
            "what": metric(self.metric).name,
            "before": value_words(self.metric, self.before),
            "now": value_words(self.metric, self.after),
            "95 % interval": interval_words(self.metric, self.interval),
            "steps": self.where,
            "metric": self.metric,
        }


def evidence_rows(verdict: Verdict) -> list[EvidenceRow]:
    """One row a metric: by its first claim, or else by the evidence of an alarm."""
    text_of = {evidence.metric: evidence.words for evidence in verdict.evidence}
    rows: dict[str, EvidenceRow] = {}
    for claim in verdict.claims:
        for part in _parts(claim):
            rows.setdefault(part.metric, _of_claim(part, text_of.get(part.metric)))
    for evidence in verdict.evidence:
        rows.setdefault(evidence.metric, _of_evidence(evidence))
    return list(rows.values())


def _parts(claim: Claim) -> Iterator[Change | Lost | Dip | Level]:
    """The claims about one metric each that a claim is made of."""
    if isinstance(claim, Disagreement):
        yield from (claim.down, claim.up, *claim.terms)
    elif isinstance(claim, Change | Lost | Dip | Level):
        yield claim


def _of_claim(claim: Change | Lost | Dip | Level, text: str | None) -> EvidenceRow:
    before, now = _ends(claim)
    where = step_words(now.steps)
    if before is not None:
        where = f"{step_words(before.steps)}, then {where}"
    if now.trials > 0:
        where += f" ({trials_words(now)})"
    return EvidenceRow(
        metric=now.metric,
        before=math.nan if before is None else before.value,
        after=now.value,
        interval=(now.low, now.high),
        steps=((before or now).steps[0], now.steps[1]),
        levels=(now,) if before is None else (before, now),
        where=where,
        sentence=text or f"{metric(now.metric).in_sentence}: {claim_words(claim)}",
        is_proof=text is not None or before is not None,
    )


def _ends(claim: Change | Lost | Dip | Level) -> tuple[Level | None, Level]:
    """The level before, if it was another one, and the level now."""
    if isinstance(claim, Level):
        return None, claim
    if isinstance(claim, Dip):
        return claim.held, claim.now
    change = claim.change if isinstance(claim, Lost) else claim
    return change.before, change.after


def _of_evidence(evidence: Evidence) -> EvidenceRow:
    interval = evidence.interval
    if interval is not None and metric(evidence.metric).unit == SHARE:
        interval = max(interval[0], 0.0), min(interval[1], 1.0)
    elif interval is not None and evidence.metric.endswith("_std_mean"):
        interval = max(interval[0], 0.0), interval[1]
    first, last = evidence.steps
    has_before = not math.isnan(evidence.before)
    where = f"step {first}, then step {last}" if has_before else f"step {last}"
    where += f" ({evidence.averaged})" if evidence.averaged else ""
    of_start, is_of_start, of_now = evidence.averaged.partition(THEN)
    if is_of_start:  # the level before is of no single step
        where = f"{of_start}{THEN}step {last} ({of_now})"

    def level(value: float, step: int, ends: tuple[float, float] | None) -> Level:
        low, high = ends or (math.nan, math.nan)
        return Level(
            metric=evidence.metric,
            value=value,
            low=low,
            high=high,
            steps=(step, step),
            num_points=1,
        )

    now = level(evidence.after, last, interval)
    return EvidenceRow(
        metric=evidence.metric,
        before=evidence.before,
        after=evidence.after,
        interval=interval,
        steps=evidence.steps,
        levels=(level(evidence.before, first, None), now) if has_before else (now,),
        where=where,
        sentence=evidence.words,
        is_proof=True,
    )
