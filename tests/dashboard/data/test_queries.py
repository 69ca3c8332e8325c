"""What pages read: the same as the store says, kept until something new is acknowledged."""

from __future__ import annotations

import math
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from made_run import add_steps, made_trajectory, make_run, open_writer

from echoscope.dashboard.data import queries
from echoscope.dashboard.data import verdict_cache as judging
from echoscope.dashboard.data.cache import AnswerCache
from echoscope.dashboard.page.problems import Problem
from echoscope.diagnostics.judge.record import Verdict
from echoscope.diagnostics.judge.verdict import Judgement, diagnose
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.writer import RunWriter

Serve = Callable[..., None]


@pytest.fixture
def root(tmp_path: Path, serve_root: Serve) -> Path:
    serve_root(tmp_path)
    return tmp_path


def test_answers_are_those_of_the_store(recorded_root: Path, serve_root: Serve) -> None:
    serve_root(recorded_root)
    run = open_run(recorded_root / "tiny")
    assert queries.info("tiny").config == run.info().config
    assert queries.step_table("tiny")["step"].tolist() == run.steps().column("step").to_pylist()
    assert queries.metric_keys("tiny") == run.metric_keys()
    assert queries.trajectory_steps("tiny") == [0, 1, 2, 3, 4]
    listed = queries.listing("tiny", 2)
    assert listed["id"].tolist() == run.listing(2).column("id").to_pylist()
    first = queries.trajectory("tiny", "t00000002-00000")
    assert first.turns[0].response == run.trajectory(first.id).turns[0].response
    outcome = queries.outcome("tiny", first.id)
    assert outcome is not None
    assert outcome.kept == run.outcome(first.id).kept  # type: ignore[union-attr]
    assert [c.path for c in queries.checkpoints("tiny")] == [c.path for c in run.checkpoints()]
    for step in queries.diagnostic_steps("tiny", "text"):
        record = queries.diagnostic_near("tiny", "text", step)
        assert record is not None
        assert (record.kind, record.step) == ("text", step)


def test_tokens_as_text_make_the_response(recorded_root: Path, serve_root: Serve) -> None:
    serve_root(recorded_root)
    turn = queries.trajectory("tiny", "t00000002-00000").turns[0]
    assert turn.response_tokens is not None
    pieces = queries.token_pieces("tiny", turn.response_tokens.tolist())
    assert pieces is not None
    assert len(pieces) == len(turn.response_tokens)
    assert "".join(pieces).startswith(turn.response[:5].rstrip("\ufffd"))


def test_without_a_tokenizer_there_are_no_pieces(root: Path) -> None:
    make_run(root / "a", base_model="/etc")
    assert queries.token_pieces("a", [1, 2]) is None


# -- what is kept ----------------------------------------------------------------------------------


def test_an_answer_is_kept_until_a_step_is_acknowledged(root: Path) -> None:
    writer = open_writer(root / "a")
    add_steps(writer, "a", range(2))
    before = queries.step_table("a")
    assert queries.step_table("a") is before
    position = queries.position("a")
    add_steps(writer, "a", range(2, 3))
    assert queries.position("a") != position
    assert queries.step_table("a")["step"].tolist() == [0, 1, 2]
    position = queries.position("a")
    writer.close(status="finished")
    assert queries.position("a") != position
    assert queries.info("a").status == "finished"


def test_new_metrics_are_found_without_reading_the_old_ones_again(root: Path) -> None:
    writer = open_writer(root / "a")
    add_steps(writer, "a", range(2))
    assert queries.metric_keys("a") == ["policy/entropy"]
    add_steps(writer, "a", range(2, 3), lambda step: {"new/key": 1.0})
    assert queries.metric_keys("a") == ["new/key", "policy/entropy"]
    writer.close(status="stopped")
    with RunWriter.resume(root / "a", from_step=0, is_packing=False):
        assert queries.metric_keys("a") == ["policy/entropy"]  # the rest was rewound


def test_the_cache_stays_within_its_bounds() -> None:
    cache = AnswerCache(max_entries=3, max_bytes=100_000)
    for number in range(10):
        cache.get(number, 0, lambda: "small")
    assert len(cache._answers) == 3
    big = pd.DataFrame({"x": np.zeros(10_000)})  # 80 kB: two do not fit
    cache.get("one", 0, lambda: big)
    cache.get("two", 0, lambda: big)
    assert list(cache._answers) == ["two"]
    assert cache.num_bytes < 100_000


def test_several_threads_ask_once() -> None:
    cache, asked, started = AnswerCache(), [], threading.Barrier(4)

    def ask() -> str:
        asked.append(1)
        return "answer"

    def work() -> None:
        started.wait()
        assert cache.get("key", 0, ask) == "answer"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1


# -- series ----------------------------------------------------------------------------------------


def test_a_short_series_is_given_whole(root: Path) -> None:
    make_run(root / "a", 5, values=lambda step: {"x": float(step), "y": math.nan})
    points = queries.series("a", ["y", "x"])
    assert points["key"].tolist() == ["x"] * 5 + ["y"] * 5
    assert points["value"].tolist()[:5] == [0, 1, 2, 3, 4]


def test_a_long_series_is_means_of_ranges_between_its_real_ends(root: Path) -> None:
    """100 steps in ranges of 10; the first and the last value are points of their own."""
    values = [float(step % 10) for step in range(100)]
    values[37], values[0], values[99] = 107.0, -5.0, 50.0
    make_run(root / "a", 100, values=lambda s: {"x": values[s], "n": math.nan})
    table = queries.series("a", ["x", "n"], max_points=10)
    assert set(table["key"]) == {"x"}  # what is never finite has no point
    assert table["step"].tolist() == [0, 5, 15, 25, 35, 45, 55, 65, 75, 85, 95, 99]
    assert table["value"].tolist()[:3] == [-5.0, 4.0, 4.5]
    assert table["value"].iloc[-1] == 50.0
    spike = table[table["step"] == 35].iloc[0]
    assert (spike["value"], spike["lowest"], spike["highest"]) == (14.5, 0.0, 107.0)


def test_a_metric_that_is_measured_seldom_keeps_each_value_at_its_step(root: Path) -> None:
    make_run(root / "a", 100, values=lambda s: {"x": float(s)} if s % 30 == 0 else {"y": 0.0})
    table = queries.series("a", ["x"], max_points=10)
    assert list(zip(table["step"], table["value"], strict=True)) == [
        (0, 0.0),
        (30, 30.0),
        (60, 60.0),
        (90, 90.0),
    ]


def test_phases_are_told_apart(root: Path) -> None:
    writer = open_writer(root / "a")
    rows = [
        StepMetrics(
            run_id="a", step=0, phase=phase, policy_version=0, wall_time=1.0, values={"x": value}
        )
        for phase, value in (("train", 1.0), ("eval", 2.0))
    ]
    writer.commit_step(metrics=rows, trajectories=[made_trajectory(0, 0)], outcomes=[])
    writer.close(status="finished")
    assert queries.series("a", ["x"], "eval")["value"].tolist() == [2.0]
    assert sorted(queries.series("a", ["x"])["value"]) == [1.0, 2.0]


def test_too_many_metrics_at_once_are_refused(root: Path) -> None:
    make_run(root / "a")
    with pytest.raises(Problem, match="65 metrics were asked for at once"):
        queries.series("a", [str(i) for i in range(65)])


# -- problems --------------------------------------------------------------------------------------


def test_a_missing_root_says_how_to_make_one(root: Path) -> None:
    root.rmdir()
    with pytest.raises(Problem, match="No such file") as caught:
        queries.runs()
    assert "echoscope demo --root" in caught.value.advice


def test_a_run_that_is_removed_while_it_is_open(root: Path) -> None:
    make_run(root / "a")
    queries.step_table("a")
    shutil.rmtree(root / "a")
    with pytest.raises(Problem, match="there is no run 'a'"):
        queries.step_table("a")


def test_another_run_in_its_place_is_opened_anew(root: Path) -> None:
    make_run(root / "a", 3)
    assert len(queries.step_table("a")) == 3
    shutil.rmtree(root / "a")
    make_run(root / "a", 5)
    assert len(queries.step_table("a")) == 5


@pytest.mark.parametrize(
    ("trajectory", "why"),
    [("nonsense", "is not a trajectory id"), ("t00000099-00000", "has no trajectory")],
)
def test_a_trajectory_that_is_not_there(root: Path, trajectory: str, why: str) -> None:
    make_run(root / "a")
    for ask in (queries.trajectory, queries.outcome):
        with pytest.raises(Problem, match=why):
            ask("a", trajectory)


def test_damage_is_named_and_the_rest_is_shown(root: Path) -> None:
    run = make_run(root / "a", 3)
    broken = next((run / "seg" / "turns").glob("00000001-*"))
    broken.write_bytes(b"no parquet")
    assert len(queries.table("a", "SELECT * FROM turns")) == 8  # of the other two steps
    assert broken.name in queries.warnings("a")[0]


# -- verdicts --------------------------------------------------------------------------------------


def falling(step: int) -> dict[str, float]:
    valid = 0.95 if step < 50 else 0.2
    return {"rollout/action_valid_frac": valid, "rollout/success_rate": valid / 2, "text/x": 0.0}


def test_a_verdict_step_by_step_is_that_of_diagnose(root: Path) -> None:
    writer = open_writer(root / "a")
    add_steps(writer, "a", range(40), falling, num_trajectories=0)
    early = queries.verdict("a", wait_s=60)
    assert (early.state.value, early.last_step) == ("healthy", 39)
    add_steps(writer, "a", range(40, 80), falling, num_trajectories=0)
    late = queries.verdict("a", wait_s=60)
    assert late == diagnose(root / "a")
    assert late.state.value == "collapsed"
    assert queries.known_verdict("a") is late
    writer.close(status="finished")


def test_a_metric_behind_its_step_is_not_missed(root: Path) -> None:
    """As an evaluation is: the step was judged already when it came."""
    writer = open_writer(root / "a")
    add_steps(writer, "a", range(20), falling, num_trajectories=0)
    queries.verdict("a", wait_s=60)
    writer.close(status="stopped")
    with RunWriter.resume(root / "a", from_step=9, is_packing=False) as again:
        add_steps(again, "a", range(10, 15), falling, num_trajectories=0)
    assert queries.verdict("a", wait_s=60) == diagnose(root / "a")


def test_before_there_is_a_verdict_one_says_so(root: Path) -> None:
    make_run(root / "a", 30, values=falling)
    first = queries.verdict("a", wait_s=0)
    if first.last_step is None:
        assert (first.state.value, first.confidence) == ("insufficient evidence", "none")
        assert "being judged" in first.text
    final = queries.verdict("a", wait_s=60)
    assert final.last_step == 29
    assert not queries.is_judging("a")


def test_a_long_run_is_judged_by_averages(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """81 steps in ranges of two: the last one is half, and waits."""
    monkeypatch.setattr(judging, "MAX_ROWS", 40)
    make_run(root / "a", 81, values=falling)
    verdict = queries.verdict("a", wait_s=60)
    assert (verdict.state.value, verdict.last_step) == ("collapsed", 79)


def test_a_long_run_is_judged_by_another_process_with_the_same_words(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LONG", 20)
    judged, aside = [], judging.judge_aside

    def judge_aside(path: Path, step: int | None) -> tuple[Verdict, Judgement] | None:
        judged.append(aside(path, step))
        return judged[-1]

    monkeypatch.setattr(judging, "judge_aside", judge_aside)
    writer = open_writer(root / "a")
    add_steps(writer, "a", range(40), falling, num_trajectories=0)
    assert queries.verdict("a", wait_s=120) == diagnose(root / "a")
    assert queries.verdict("a", wait_s=120) is judged[0][0]
    add_steps(writer, "a", range(40, 55), falling, num_trajectories=0)
    assert queries.verdict("a", wait_s=120) == diagnose(root / "a")
    assert len(judged) == 1, "the steps that follow are judged here"
    writer.close(status="finished")


def test_where_that_process_cannot_say_anything_this_one_judges(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "LONG", 20)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    make_run(root / "a", 40, values=falling)
    assert queries.verdict("a", wait_s=60) == diagnose(root / "a")
