"""CollapseBench: labels in, detection, lead and false alarms out."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from echoscope.diagnostics.baselines import baselines, entropy_threshold, ragen_stop, z_score
from echoscope.diagnostics.collapsebench import (
    LabelledRun,
    halved_for_good,
    judge,
    load_curves,
    summarise,
)
from echoscope.diagnostics.made_bench import bench_made, healthy_stretch, resampled_false_alarms
from echoscope.diagnostics.made_runs import COLLAPSES, HEALTHY, make
from echoscope.diagnostics.metric_table import MetricTable
from echoscope.diagnostics.metrics_file import MetricsFileError


def write_curves(folder: Path, runs: Mapping[str, Any]) -> Path:
    """Made runs as CSV files with labels, as the real ones are kept."""
    for name, (made, _) in runs.items():
        path = folder / f"{name}.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        keys = list(made.table.columns)
        lines = [",".join(["step", *keys])]
        for step, values in made.table.rows():
            lines.append(",".join([str(step), *(str(values.get(key, "")) for key in keys)]))
        path.write_text("\n".join(lines) + "\n")
    labels = {"runs": {name: entry for name, (_, entry) in runs.items()}}
    (folder / "labels.json").write_text(json.dumps(labels))
    return folder


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    bad, good = make("format_collapse", 1).run, make("healthy", 1).run
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
                    "facts": {"ragen_reward_variance_stop": 150, "ragen_low_validation_stop": None},
                },
            ),
            "set/good": (good, {"label": "healthy", "collapsed": False}),
            "set/nothing": (good, {"label": "zero_signal", "collapsed": True}),
        },
    )


def test_labelled_curves(curves: Path) -> None:
    runs = load_curves(curves)
    assert [run.name for run in runs] == ["set/bad", "set/good", "set/nothing"]
    results = [judge(run) for run in runs]
    assert results[0].is_detected
    assert results[0].is_kind_right
    summary = summarise(results)
    assert (summary.num_collapsed, summary.num_detected, summary.num_kind_right) == (1, 1, 1)
    assert (summary.num_controls, summary.num_false_critical) == (1, 0)
    assert summary.median_lead > 0
    assert summary.false_per_1000 == 0


def test_baselines_on_the_same_runs(curves: Path) -> None:
    runs = load_curves(curves)
    assert ragen_stop(runs[0]) == 150
    found = {result.name: result for result in baselines(runs, 0)}
    late = found["RAGEN's stop rules"]
    assert late.num_detected == 0
    assert late.median_lead < 0
    assert all(r.num_false == 0 for name, r in found.items() if "matched" in name)


def test_halving_for_good() -> None:
    def table(*success: float) -> MetricTable:
        return MetricTable(
            steps=10 * np.arange(len(success)),
            columns={"eval/a/success_rate": np.array(success)},
            sources={},
            kind="csv",
        )

    assert halved_for_good(table(0.1, 0.4, 0.1, 0.3, 0.1, 0.0)) == 40
    assert halved_for_good(table(0.4, 0.1, 0.3)) is None
    assert halved_for_good(table()) is None
    assert (
        halved_for_good(MetricTable(steps=np.arange(3), columns={}, sources={}, kind="x")) is None
    )


def labelled(**columns: np.ndarray) -> LabelledRun:
    named = {key.replace("__", "/"): np.asarray(v, dtype=float) for key, v in columns.items()}
    steps = np.arange(len(next(iter(named.values()))))
    return LabelledRun(
        name="x", label="", is_collapsed=True, counts=True, halved_step=None, onset_step=None,
        recorded_stops={}, table=MetricTable(steps=steps, columns=named, sources={}, kind="csv"),
    )  # fmt: skip


def test_ragens_rules_by_its_constants() -> None:
    """Baseline of ten steps, then ten in a row below a tenth of it: 0.4 until 29, 0.03 from 30."""
    steps = np.arange(60)
    run = labelled(reward__group_std_mean=np.where(steps < 30, 0.4, 0.03))
    assert ragen_stop(run) == 39
    run = labelled(eval__a__success_rate=np.where(steps < 20, 0.3, 0.0))
    assert ragen_stop(run) == 24
    run = labelled(selection__is_empty=np.where(steps < 20, 0.0, 1.0))
    assert ragen_stop(run) == 24
    assert ragen_stop(labelled(policy__entropy=np.ones(5))) is None


def test_threshold_alerts() -> None:
    steps = np.arange(60)
    run = labelled(policy__entropy=np.where(steps < 30, 1.0 + 0.01 * (steps % 3), 3.0))
    assert entropy_threshold(2.0)(run) == 32
    assert entropy_threshold(4.0)(run) is None
    assert z_score(3.0)(run) == 32
    assert z_score(1e6)(run) is None
    assert z_score(3.0)(labelled(policy__entropy=np.ones(60))) is None


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (None, "no labels.json"),
        ("{", "is not JSON"),
        ("[]", "has no `runs`"),
        ('{"runs": {"../x": {}}}', "outside of the folder"),
    ],
)
def test_labels_that_are_none(tmp_path: Path, labels: str | None, said: str) -> None:
    if labels is not None:
        (tmp_path / "labels.json").write_text(labels)
    with pytest.raises(MetricsFileError, match=said):
        load_curves(tmp_path)


@pytest.mark.parametrize("kind", [*HEALTHY, *COLLAPSES])
def test_made_runs_repeat_themselves(kind: str) -> None:
    first, second = make(kind, 11), make(kind, 11)
    assert first.run.table.keys() == second.run.table.keys()
    for key, values in first.run.table.columns.items():
        assert np.array_equal(values, second.run.table.columns[key], equal_nan=True)
    assert (first.run.onset_step is not None) == (kind in COLLAPSES)


@pytest.mark.parametrize("kind", [*COLLAPSES])
def test_every_made_collapse_is_named(kind: str) -> None:
    result = judge(make(kind, 12).run)
    assert result.state.is_collapse
    assert result.is_kind_right


@pytest.mark.parametrize("kind", [*HEALTHY])
@pytest.mark.parametrize("seed", range(3))
def test_no_made_healthy_run_is_called_a_collapse(kind: str, seed: int) -> None:
    assert judge(make(kind, seed).run).first_critical_step is None


def test_made_runs_as_a_bench() -> None:
    report = bench_made([1, 2])
    assert report.total.num_collapsed == 2 * len(COLLAPSES)
    assert report.total.num_false_critical == 0
    assert report.regimes_right > 0.8
    assert report.watched["format_collapse"] == 2


def test_healthy_stretches_resampled(curves: Path) -> None:
    """The healthy run from row 20 on, and the collapsed one until ten steps before its onset."""
    runs = load_curves(curves)
    names, rows = healthy_stretch(runs[1]) or ([], np.empty((0, 0)))
    assert len(rows) == 140
    assert len(names) == rows.shape[1]
    assert healthy_stretch(runs[2]) is None
    chance = resampled_false_alarms(runs, draws=2, length=60)
    assert chance.num_steps in (2 * 60, 2 * 2 * 60)
    assert chance.num_critical == 0
    assert chance.per_1000(0) == 0
