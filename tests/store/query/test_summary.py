"""What the metrics of a run come to: last, recent, lowest, highest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.query.summary import MetricSummary, summary_of


def values(step: int) -> dict[str, float]:
    return {"a": float(step), "b": math.nan if step > 2 else 10.0 - step}


def test_a_metric_is_summed_up_over_its_finite_values(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 12, values=values)
    summary = summary_of(RunIndex(run))
    assert summary.of("a") == MetricSummary(last=11, last_step=11, recent=6.5, low=0, high=11)
    assert summary.of("b") == MetricSummary(last=8, last_step=2, recent=9, low=8, high=10)
    assert summary.of("c") is None


def test_a_run_without_metrics_has_none(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 0)
    assert summary_of(RunIndex(run)).keys == ()


@pytest.mark.parametrize("is_kept", [True, False])
def test_packs_are_read_once_and_the_answer_is_the_same(tmp_path: Path, is_kept: bool) -> None:
    writer = open_writer(tmp_path / "a", rotate_every=4)
    add_steps(writer, "a", range(14), values, num_trajectories=1)
    writer.close(status="stopped")
    whole = MetricSummary(last=13, last_step=13, recent=8.5, low=0, high=13)
    assert summary_of(RunIndex(tmp_path / "a")).of("a") == whole
    pack(tmp_path / "a", grace_s=0)
    index = RunIndex(tmp_path / "a")
    first = summary_of(index)
    assert (first.of("a"), len(first.packed.files) > 0) == (whole, True)
    for path in first.packed.files if is_kept else ():
        (index.layout.root / path).unlink()
    again = summary_of(index, first.packed) if is_kept else summary_of(index)
    assert again.of("a") == whole
