"""CollapseBench: labels in, detection, lead and false alarms out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echoscope.diagnostics.bench.baselines import baselines
from echoscope.diagnostics.bench.detectors.ragen import first_stop
from echoscope.diagnostics.bench.harness import halved_for_good, load_curves
from echoscope.diagnostics.bench.judging import judge
from echoscope.diagnostics.bench.report import made_set, report
from echoscope.diagnostics.bench.synthetic_runs import COLLAPSES, HEALTHY, make
from echoscope.diagnostics.judge.regimes import Regime
from echoscope.diagnostics.read.records import MetricsFileError
from echoscope.diagnostics.read.table import MetricTable


def write_curves(folder: Path, runs: Mapping[str, Any]) -> Path:
    """Made runs as CSV files with labels, as the real ones are kept."""
    for name, (run, _) in runs.items():
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = list(run.table.columns)
        lines = [",".join(["step", *keys])]
        for step, values in run.table.rows():
            lines.append(",".join([str(step), *(str(values.get(key, "")) for key in keys)]))
        path.write_text("\n".join(lines) + "\n")
    labels = {"runs": {name: entry for name, (_, entry) in runs.items()}}
    (folder / "labels.json").write_text(json.dumps(labels))
    return folder


def test_a_kind_that_is_not_made_is_an_error() -> None:
    with pytest.raises(KeyError, match="no_such"):
        make("no_such", 1)


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bad, good = make("format_collapse", 1), make("healthy", 1)
    interval = [bad.halved_step - 10, bad.halved_step] if bad.halved_step else None
    return write_curves(
        tmp_path_factory.mktemp("curves"),
        {
            "set/bad": (
                bad,
                {
                    "label": "format_collapse",
                    "collapsed": True,
                    "onset_early": {"step": bad.onset_step},
                    "onset_performance": {"interval": interval},
                    "regime": "diverse",
                    "seed": 3,
                    "facts": {"ragen_reward_variance_stop": 150, "ragen_low_validation_stop": None},
                },
            ),
            "set/good": (good, {"label": "healthy", "collapsed": False}),
            "set/nothing": (good, {"label": "zero_signal", "collapsed": True}),
        },
    )


@pytest.mark.long
@pytest.mark.no_cover  # measuring it takes three times as long as the test
def test_labelled_curves(curves: Path) -> None:
    bad, good, nothing = load_curves(curves)
    assert [run.name for run in (bad, good, nothing)] == ["set/bad", "set/good", "set/nothing"]
    assert bad.onset_step is not None
    assert bad.healthy_until == bad.onset_step - 10
    assert bad.num_healthy_steps == bad.onset_step - 10  # steps from 0 on
    assert (good.num_healthy_steps, nothing.num_healthy_steps) == (160, 0)
    assert (bad.regime, bad.seed, good.regime) == (Regime.DIVERSE, 3, None)
    scored = report("set", [bad, good, nothing])
    assert (scored.verdict.num_collapsed, scored.verdict.num_in_time) == (1, 1)
    assert scored.num_kind_right == 1
    assert (scored.verdict.num_controls, scored.verdict.num_false) == (1, 0)
    assert scored.verdict.median_lead > 0
    assert scored.verdict.false_per_1000 == 0


def test_baselines_on_the_same_runs(curves: Path) -> None:
    runs = load_curves(curves)
    assert first_stop(runs[0]) == (150,)
    by_name = {result.name: result for result in baselines(runs, 0.0)}
    late = by_name["RAGEN: the first of its three"].scores
    assert late.num_in_time == 0
    assert late.median_lead < 0
    kept = [result.matched_scores for result in by_name.values()]
    assert all(scores.num_false == 0 for scores in kept if scores is not None)


def test_halving_for_good() -> None:
    def table(*success: float) -> MetricTable:
        return MetricTable(
            steps=10 * np.arange(len(success)),
            columns={"eval/a/success_rate": np.array(success)},
            sources={},
        )

    assert halved_for_good(table(0.1, 0.4, 0.1, 0.3, 0.1, 0.0)) == 40
    assert halved_for_good(table(0.4, 0.1, 0.3)) is None
    assert halved_for_good(table()) is None
    assert halved_for_good(MetricTable(steps=np.arange(3), columns={}, sources={})) is None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (None, "no labels.json"),
        ("{", "is not JSON"),
        ("[]", "has no `runs`"),
        ('{"runs": {"../x": {}}}', "outside of the folder"),
        ('{"runs": {"a": {"regime": "sleepy"}}}', "regime is 'sleepy'"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: str | None, message: str) -> None:
    if labels is not None:
        (tmp_path / "labels.json").write_text(labels)
        (tmp_path / "a.csv").write_text("step,loss\n1,0.5\n2,0.4\n")
    with pytest.raises(MetricsFileError, match=message):
        load_curves(tmp_path)


@pytest.mark.parametrize("kind", [*HEALTHY, *COLLAPSES])
def test_made_runs_repeat_themselves(kind: str) -> None:
    first, second = make(kind, 11), make(kind, 11)
    assert first.table.keys() == second.table.keys()
    for key, values in first.table.columns.items():
        assert np.array_equal(values, second.table.columns[key], equal_nan=True)
    assert (first.onset_step is not None) == (kind in COLLAPSES)


@pytest.mark.parametrize("kind", [*COLLAPSES])
def test_every_made_collapse_is_named(kind: str) -> None:
    result = judge(make(kind, 12))
    assert result.state.is_collapse
    assert result.is_kind_right


@pytest.mark.parametrize("kind", [*HEALTHY])
@pytest.mark.parametrize("seed", range(3))
def test_no_made_healthy_run_is_called_a_collapse(kind: str, seed: int) -> None:
    assert judge(make(kind, seed)).first_critical_step is None


@pytest.mark.long
@pytest.mark.no_cover  # measuring it takes three times as long as the test
def test_made_runs_as_a_bench() -> None:
    scored = report("made", made_set([1, 2]))
    assert scored.verdict.num_collapsed == 2 * len(COLLAPSES)
    assert scored.verdict.num_false == 0
    assert scored.regimes_right > 0.8
    assert scored.by_label["format_collapse"].num_watched == 2
    assert all(scored.has_more_lead(other) for other in scored.beside)
