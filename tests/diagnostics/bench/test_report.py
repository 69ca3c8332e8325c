"""The tables of CollapseBench: per rule, regimes, kinds, and as JSON."""

import json

import numpy as np
import pytest

from echoscope.diagnostics.bench.cures.kinds import HERE, kinds, twins
from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.bench.judging import JudgedRun, RuleCalls, judge
from echoscope.diagnostics.bench.report import recorded_set, report_of
from echoscope.diagnostics.bench.scores import Call
from echoscope.diagnostics.judge.alarms import RULE_ORDER, RunState
from echoscope.diagnostics.judge.regimes import Regime
from echoscope.diagnostics.read.table import MetricTable

FORMAT, TRAP = "FORMAT_COLLAPSE", "ECHO_TRAP"


def run(label: str, *, collapsed: bool, regime: Regime | None = None) -> LabelledRun:
    """100 steps; a collapse shows from 50 on and has halved by 70."""
    return LabelledRun(
        name=label, label=label, is_collapsed=collapsed, counts=True,
        halved_step=70 if collapsed else None, onset_step=50 if collapsed else None,
        recorded_stops={}, regime=regime,
        table=MetricTable(steps=np.arange(100), columns={}, sources={}),
    )  # fmt: skip


def judged(
    of: LabelledRun,
    *kinds: str,
    warned: dict[str, int] | None = None,
    critical: dict[str, int] | None = None,
    regime: Regime = Regime.DIVERSE,
) -> JudgedRun:
    warned, critical = warned or {}, critical or {}

    spoke = {**critical, **warned}

    def call(steps: dict[str, int], rule: str) -> Call:
        return Call(run=of, steps=(steps[rule],) if rule in steps else ())

    first = min(critical.values(), default=None)
    return JudgedRun(
        run=of, state=RunState.COLLAPSING if kinds else RunState.HEALTHY, kinds=kinds,
        regime=regime, watch=Call(run=of, steps=tuple(sorted(warned.values()))),
        critical=Call(run=of, steps=() if first is None else (first,)),
        rules={
            rule: RuleCalls(warning=call(spoke, rule), critical=call(critical, rule))
            for rule in RULE_ORDER
        },
    )  # fmt: skip


BROKEN = run("format_collapse", collapsed=True, regime=Regime.DIVERSE)
ECHO = run("echo_trap", collapsed=True, regime=Regime.LOW_ENTROPY_COLLAPSE)
GOOD = run("healthy", collapsed=False)
RESULTS = [
    judged(BROKEN, FORMAT, warned={FORMAT: 55}, critical={FORMAT: 60}),
    judged(BROKEN, TRAP, warned={FORMAT: 65, TRAP: 64}, critical={FORMAT: 75}),
    judged(ECHO, TRAP, warned={TRAP: 20}, critical={TRAP: 66}, regime=Regime.LOW_ENTROPY_COLLAPSE),
    judged(GOOD, warned={FORMAT: 10}, critical={TRAP: 90}),
]


def test_per_rule_by_hand() -> None:
    """FORMAT_COLLAPSE: called 60 and 75 of 70, leads 10 and -5; warned at 55 and 65, both in time.

    Healthy: 40 steps of three collapses and 100 of the control. It warned once there (step 10);
    ECHO_TRAP once in vain in the control (90) and once too early in its own collapse (20).
    """
    rules = report_of("x", RESULTS).to_json()["rules"]
    own = rules[FORMAT]["own_kind"]
    assert (own["collapsed"], own["detected"], own["median_lead"]) == (2, 1, 2.5)
    assert own["median_onset_error"] == 17.5  # 10 and 25
    assert rules[FORMAT]["own_kind_warned_in_time"] == 2
    assert rules[FORMAT]["warning"]["detected"] == 2
    assert rules[FORMAT]["critical"]["false"] == 0
    assert rules[FORMAT]["warning"]["false_per_1000_steps"] == pytest.approx(1000 / 220)
    assert rules[TRAP]["critical"]["false_per_1000_steps"] == pytest.approx(1000 / 220)
    assert rules[TRAP]["warning"]["false"] == 2
    assert rules[TRAP]["warning"]["detected"] == 1  # in the broken run, at 64
    assert rules["STALLED"]["own_kind"] is None


def test_whole_verdict_and_confusion_by_hand() -> None:
    bench_report = report_of("x", RESULTS)
    assert (bench_report.verdict.num_collapsed, bench_report.verdict.num_in_time) == (3, 2)
    assert bench_report.verdict.median_lead == 4  # of 10, -5 and 4
    assert bench_report.verdict.num_false == 1
    assert bench_report.num_kind_right == 2
    assert bench_report.kinds == {
        ("format_collapse", FORMAT): 1,
        ("format_collapse", TRAP): 1,
        ("echo_trap", TRAP): 1,
    }
    assert bench_report.regimes == {
        ("diverse", "diverse"): 2,
        ("low_entropy_collapse", "low_entropy_collapse"): 1,
    }
    assert bench_report.regimes_right == 1.0
    assert bench_report.by_label["healthy"].critical.num_false == 1


def test_json_has_everything_and_only_numbers() -> None:
    stored = json.loads(json.dumps(report_of("x", RESULTS).to_json(), allow_nan=False))
    assert stored["verdict"]["detected"] == 2
    assert stored["verdict"]["false_per_1000_steps"] == pytest.approx(1000 / 220)
    assert stored["targets"]["detection"] is False
    assert stored["targets"]["more_lead"]["z-score"] is True
    assert stored["rules"][FORMAT]["own_kind"]["median_lead"] == 2.5
    assert [run["detected"] for run in stored["runs"]] == [True, False, True, False]
    assert stored["runs"][3]["false_critical_steps"] == [90]


def test_a_rules_alarm_begins_when_it_is_raised_from_below() -> None:
    """Validity falls at 40 and success with it at 60; both come back at 80."""
    steps = np.arange(120)
    bad = (steps >= 40) & (steps < 80)
    columns = {
        "rollout/action_valid_frac": np.where(bad, 0.3, 0.95),
        "eval/a/success_rate": np.where((steps >= 60) & (steps < 80), 0.05, 0.6),
    }
    table = MetricTable(steps=steps, columns=columns, sources={})
    of = LabelledRun(
        name="x", label="format_collapse", is_collapsed=True, counts=True, halved_step=60,
        onset_step=40, recorded_stops={}, table=table,
    )  # fmt: skip
    judged_run = judge(of)
    calls = judged_run.rules[FORMAT]
    # the median of five is low from 42 on, three times by 44; success turns at 60
    assert calls.warning.steps == (44,)
    assert calls.critical.steps == (60,)
    assert judged_run.watch.steps == (44,)
    assert judged_run.critical.steps == (60,)
    assert judged_run.critical.lead == 0
    assert FORMAT not in judged_run.kinds


@pytest.mark.long
def test_the_part_of_the_cures_holds_every_curve_that_is_kept() -> None:
    runs = {run.name: run for run in recorded_set("cures")}
    assert len(runs) == len(list((HERE / "curves").glob("*/*.csv")))
    assert {name.split("/")[0] for name in runs} <= {*kinds(), *twins()}
    assert runs["bandit-luck/seed0"].label == "echo_trap"
    assert all(run.halved_step is not None for run in runs.values() if run.is_collapsed)


def test_the_part_of_the_truth_table_is_labelled_by_what_is_true() -> None:
    runs = {run.name: run for run in recorded_set("truth")}
    assert not runs["slow-rise"].is_collapsed
    assert runs["slow-rise"].counts
    assert not runs["dip"].counts, "nothing is wrong in the end, and an alarm in the dip is right"
    fall = runs["lost-within-15-rows"]
    assert fall.is_collapsed
    assert fall.onset_step == 66, "where the true mean begins to fall"
    assert fall.halved_step == 74, "where it is below half of its best"
