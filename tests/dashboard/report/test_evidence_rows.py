"""The table of evidence: claims first, one row a metric, one interval for one number."""

from __future__ import annotations

import math
from dataclasses import replace

from echoscope.dashboard.report.evidence_rows import evidence_rows
from echoscope.diagnostics.judge.claims import Change, Claim, Disagreement, Level, Lost
from echoscope.diagnostics.judge.record import Evidence, Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis

SUCCESS, RETURN, VALID = "rollout/success_rate", "reward/return_mean", "rollout/action_valid_frac"


def level(metric: str, value: float, steps: tuple[int, int], trials: float = math.nan) -> Level:
    ends = {"low": value - 0.05, "high": value + 0.05}
    return Level(metric=metric, value=value, steps=steps, num_points=9, trials=trials, **ends)


def change(metric: str, before: float, after: float) -> Change:
    ends = level(metric, before, (0, 29)), level(metric, after, (30, 39), 640)
    return Change(before=ends[0], after=ends[1], low=0.0, high=0.0)


def verdict_of(*claims: Claim, evidence: tuple[Evidence, ...] = ()) -> Verdict:
    return replace(Diagnosis().verdict(), claims=claims, evidence=evidence)


def moved(metric: str, before: float, after: float, ends: tuple[float, float]) -> Evidence:
    return Evidence(
        metric=metric, before=before, after=after, interval=ends, steps=(5, 37), words="words"
    )


def test_a_claim_and_evidence_of_one_metric_are_one_row_with_one_interval() -> None:
    fall = change(SUCCESS, 0.75, 0.1)
    verdict = verdict_of(
        Lost(change=fall, most_left=0.2, num_points=10),
        fall,
        level(SUCCESS, 0.1, (30, 39)),
        evidence=(moved(SUCCESS, 0.8, 0.08, (-0.02, 0.18)),),
    )
    (row,) = evidence_rows(verdict)
    assert row.cells() == {
        "what": "Success in training",
        "before": "75 %",
        "now": "10 %",
        "95 % interval": "5 % to 15 %",
        "steps": "steps 0 to 29, then steps 30 to 39 (640 episodes)",
        "metric": SUCCESS,
    }
    assert (row.steps, row.sentence) == ((0, 39), "words")


def test_a_level_without_a_change_has_nothing_before() -> None:
    (row,) = evidence_rows(verdict_of(level(SUCCESS, 0.5, (0, 39))))
    assert (row.cells()["before"], row.cells()["steps"]) == ("none", "steps 0 to 39")
    assert row.sentence == "training success: mean 50 % (45 to 55), no trend"


def test_a_disagreement_is_a_row_for_each_side() -> None:
    claim = Disagreement(up=change(RETURN, 1.0, 3.0), down=change(SUCCESS, 0.8, 0.1))
    assert [row.metric for row in evidence_rows(verdict_of(claim))] == [SUCCESS, RETURN]


def test_evidence_beside_claims_keeps_a_share_within_its_ends() -> None:
    """The level of a share minus two standard errors was below 0 %."""
    verdict = verdict_of(evidence=(moved(VALID, 0.9, 0.02, (-0.01, 0.05)),))
    cells = evidence_rows(verdict)[0].cells()
    assert (cells["95 % interval"], cells["steps"]) == ("0 % to 5 %", "step 5, then step 37")


def test_a_level_at_the_start_is_of_its_first_rows_and_no_spread_is_below_zero() -> None:
    """ "step 1, then step 70 (median of the first 10 rows, then mean of 10 rows)": who looked at
    step 1 found another number. And the interval of a standard deviation began below 0."""
    spread = replace(
        moved("reward/group_std_mean", 0.265, 0.0167, (-0.0152, 0.0486)),
        averaged="median of the first 10 rows, then mean of 10 rows",
    )
    cells = evidence_rows(verdict_of(evidence=(spread,)))[0].cells()
    assert cells["steps"] == "median of the first 10 rows, then step 37 (mean of 10 rows)"
    assert cells["95 % interval"] == "0 to 0.0486"
