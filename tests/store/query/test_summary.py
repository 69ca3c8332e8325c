"""What the metrics of a run come to: last, recent, lowest, highest."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from made_run import add_steps, make_run, open_writer

from echoscope.store.log.index import RunIndex
from echoscope.store.log.packing import pack
from echoscope.store.query.summary import MetricSummary, points_of, summary_of
from echoscope.store.reader import open_run
from echoscope.store.writer import RunWriter


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


def test_the_points_of_a_metric_are_those_that_sql_gives(tmp_path: Path) -> None:
    """Of packs, of the live journal, without the steps that a rewind hides."""
    path = tmp_path / "a"
    writer = open_writer(path, rotate_every=4)
    add_steps(writer, "a", range(10), values, num_trajectories=1)
    writer.close(status="stopped")
    pack(path, grace_s=0)
    writer = RunWriter.resume(path, from_step=6)
    add_steps(writer, "a", range(7, 9), lambda step: {"a": 100.0 + step}, num_trajectories=1)
    writer.close(status="stopped")
    points = points_of(RunIndex(path), ["a"]).sort_by("step")
    expected = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 107.0, 108.0]
    assert points.column("value").to_pylist() == expected
    assert open_run(path).metrics("a")[1].tolist() == expected
    both = points_of(RunIndex(path), ["a", "b", "c"])
    assert sorted(set(both.column("key").to_pylist())) == ["a", "b"]
    assert both.num_rows == len(expected) + 3  # the NaN values of b are left out


def test_a_damaged_file_gives_no_points(tmp_path: Path) -> None:
    path = tmp_path / "a"
    writer = open_writer(path, rotate_every=4)
    add_steps(writer, "a", range(10), values, num_trajectories=1)
    writer.close(status="stopped")
    pack(path, grace_s=0)
    file = RunIndex(path).files("metrics")[0]
    damaged = bytearray((path / file.entry.path).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (path / file.entry.path).write_bytes(damaged)
    points = points_of(RunIndex(path), ["a"])
    assert sorted(points.column("step").to_pylist()) == [4, 5, 6, 7, 8, 9]
