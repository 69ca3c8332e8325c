"""Alerts that others use, by their constants, and the threshold that is matched."""

import math
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.bench import detectors
from echoscope.diagnostics.bench.baselines import matched
from echoscope.diagnostics.bench.detectors.entropy import entropy_threshold
from echoscope.diagnostics.bench.detectors.entry import begins, entries
from echoscope.diagnostics.bench.detectors.ragen import ENTRIES, first_stop
from echoscope.diagnostics.bench.detectors.z_score import z_score
from echoscope.diagnostics.bench.harness import LabelledRun
from echoscope.diagnostics.bench.scores import Scores
from echoscope.diagnostics.read.table import MetricTable


def labelled(**columns: np.ndarray) -> LabelledRun:
    named = {key.replace("__", "/"): np.asarray(v, dtype=float) for key, v in columns.items()}
    steps = np.arange(len(next(iter(named.values()))))
    return LabelledRun(
        name="x", label="", is_collapsed=True, counts=True, halved_step=None, onset_step=None,
        recorded_stops={}, table=MetricTable(steps=steps, columns=named, sources={}),
    )  # fmt: skip


def test_ragens_rules_by_its_constants() -> None:
    """Baseline of ten steps, then ten in a row below a tenth of it: 0.4 until 29, 0.03 from 30."""
    steps = np.arange(60)
    run = labelled(reward__group_std_mean=np.where(steps < 30, 0.4, 0.03))
    assert first_stop(run) == (39,)
    run = labelled(eval__a__success_rate=np.where(steps < 20, 0.3, 0.0))
    assert first_stop(run) == (24,)
    run = labelled(selection__is_empty=np.where(steps < 20, 0.0, 1.0))
    assert first_stop(run) == (24,)
    assert first_stop(labelled(policy__entropy=np.ones(5))) == ()
    assert [entry.as_used(run) for entry in ENTRIES[1:]] == [(), (), (24,)]


def test_threshold_alerts() -> None:
    steps = np.arange(60)
    run = labelled(policy__entropy=np.where(steps < 30, 1.0 + 0.01 * (steps % 3), 3.0))
    assert entropy_threshold(2.0)(run) == (32,)
    assert entropy_threshold(4.0)(run) == ()
    assert z_score(3.0)(run) == (32,)
    assert z_score(1e6)(run) == ()
    assert z_score(3.0)(labelled(policy__entropy=np.ones(60))) == ()


def test_every_beginning_counts() -> None:
    is_on = np.array([1, 1, 1, 1, 0, 1, 1, 1], dtype=bool)
    assert begins(np.arange(8) * 10, is_on, 3) == (20, 70)
    assert begins(np.arange(2), np.array([True, True]), 3) == ()


def scores(num_in_time: int, median_lead: float, num_false: int) -> Scores:
    return Scores(
        num_collapsed=10, num_in_time=num_in_time, median_lead=median_lead,
        median_lead_called=median_lead, median_onset_error=0.0, num_false=num_false,
        num_healthy_steps=1000, num_controls=5, num_controls_alarmed=0,
    )  # fmt: skip


def test_the_matched_threshold_is_the_best_among_those_quiet_enough() -> None:
    """At most one false alarm per 1,000: 3 finds most, and 4 as many with less lead."""
    sweep = [
        (1.0, scores(10, 40.0, 9)),
        (2.0, scores(9, 20.0, 2)),
        (3.0, scores(6, 8.0, 1)),
        (4.0, scores(6, 5.0, 0)),
        (5.0, scores(2, -math.inf, 0)),
    ]
    assert matched(sweep, 1.0) == 2
    assert matched(sweep, 0.0) == 3
    assert matched(sweep, 2.0) == 1
    assert matched(sweep[:2], 1.0) is None


def test_each_file_of_the_folder_gives_its_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [entry.name for entry in entries()]
    assert len({*names}) == len(names)
    assert {"entropy", "z-score", "RAGEN: reward variance"} <= {*names}
    (tmp_path / "mine.py").write_text(
        "from functools import partial\n"
        "from .entry import Entry\n"
        "from .own import asked_at_every_step\n"
        "def alarm(run):\n    return run['step'][-1] == 3\n"
        "mine = partial(asked_at_every_step, 'mine', alarm)\n"
        "ENTRIES = (Entry(name='mine', alert=lambda _: mine),)\n"
    )
    monkeypatch.setattr(detectors, "__path__", [*detectors.__path__, str(tmp_path)])
    mine = next(entry for entry in entries.__wrapped__() if entry.name == "mine")
    assert mine.as_used(labelled(policy__entropy=np.ones(9))) == (3,)
