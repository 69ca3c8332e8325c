"""Evaluations are ranked among those that played the same tasks, and nowhere else."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import until
from made_evaluation import episodes, make_evaluation, open_evaluation
from made_run import make_run

from echoscope.dashboard.charts.evaluations import MAX_DRAWN, success_figure
from echoscope.dashboard.data import evaluations, queries
from echoscope.dashboard.data.cache import AnswerCache
from echoscope.dashboard.data.evaluations import (
    ALIKE,
    APART,
    BEST,
    UNKNOWN,
    Played,
    StoredEvaluations,
    grouped,
    played_by,
    played_of,
    stored_evaluations,
)
from echoscope.dashboard.page.problems import Problem
from echoscope.diagnostics.measure.outcomes import outcome_of
from echoscope.diagnostics.tools.stored_outcomes import Planned
from echoscope.store.reader import RunReader

Serve = Callable[..., None]


def made(
    name: str, worlds: dict[str, list[str]], *, created_at: float = 0.0, **more: Any
) -> Played:
    """One that has played these episodes."""
    outcomes = [outcome_of(trajectory) for trajectory in episodes(worlds, **more)]
    plan = Planned(who=name, temperature=1.0, seed=0, num_episodes=len(outcomes))
    return played_of(name, created_at, plan, outcomes)


def test_ten_tasks_by_hand() -> None:
    """Rates of the best: 1 ten times. `near` fails one of 20 attempts, `far` all of them."""
    group, *rest = grouped(
        [
            made("far", {"lake": ["00"] * 10}),
            made("best", {"lake": ["11"] * 10}),
            made("near", {"lake": ["11"] * 9 + ["10"]}),
        ]
    )
    assert not rest
    assert (group.world, group.num_tasks, group.seeds) == (("lake", "lake"), 10, (0,))
    assert [row.played.run_id for row in group.rows] == ["best", "near", "far"]
    assert [row.here.table.success.value for row in group.rows] == [1.0, 0.95, 0.0]
    assert [row.standing for row in group.rows] == [BEST, ALIKE, APART]
    best, near, far = (row.difference for row in group.rows)
    assert best is None
    assert near is not None
    assert near.value == pytest.approx(-0.05)
    assert near.low < 0 <= near.high
    assert far is not None
    assert (far.value, far.low, far.high) == (-1, -1, -1)
    assert group.rows[1].here.table.pass_at[2].value == 1.0
    assert group.rows[1].here.table.pass_all[2].value == pytest.approx(0.9)


def test_three_tasks_tell_little() -> None:
    """All lost against nearly all won; with three tasks even this may be chance."""
    (group,) = grouped(
        [made("a", {"lake": ["11", "11", "10"]}), made("b", {"lake": ["00", "00", "00"]})]
    )
    assert [row.played.run_id for row in group.rows] == ["a", "b"]
    assert group.rows[0].here.table.success.value == pytest.approx(5 / 6)
    assert group.rows[1].standing == ALIKE


def test_other_tasks_stand_in_another_group() -> None:
    """Another seed, another world, and fewer tasks of the same seed."""
    groups = grouped(
        [
            made("same", {"lake": ["11", "00"]}, created_at=2.0),
            made("first", {"lake": ["10", "10"]}, created_at=3.0),
            made("seed", {"lake": ["11", "11"]}, seed=3, created_at=1.0),
            made("fewer", {"lake": ["11"]}, created_at=1.0),
            made("world", {"bandit": ["11", "11"]}, created_at=1.0),
        ]
    )
    names = [{row.played.run_id for row in group.rows} for group in groups]
    assert names == [{"first", "same"}, {"seed"}, {"fewer"}, {"world"}]


def test_two_worlds_are_two_groups() -> None:
    both = made("both", {"lake": ["11", "11"], "bandit": ["00", "10"]})
    lake = made("lake", {"lake": ["00", "00"]})
    groups = {group.world[0]: group for group in grouped([both, lake])}
    assert [row.played.run_id for row in groups["lake"].rows] == ["both", "lake"]
    (row,) = groups["bandit"].rows
    assert row.here.table.success.value == 0.25


def test_what_nobody_can_judge_is_ranked_last() -> None:
    (group,) = grouped(
        [made("unknown", {"lake": ["??", "??"]}), made("zero", {"lake": ["00", "00"]})]
    )
    assert [row.played.run_id for row in group.rows] == ["zero", "unknown"]
    assert math.isnan(group.rows[1].here.table.success.value)
    assert group.rows[1].standing == UNKNOWN


def test_costs_add_up_where_a_price_is_known() -> None:
    (group,) = grouped([made("a", {"lake": ["11", "10"]}, cost=0.25)])
    assert group.rows[0].here.cost == 1.0
    (group,) = grouped([made("a", {"lake": ["11", "10"]})])
    assert group.rows[0].here.cost is None


def test_the_figure_has_the_best_at_the_top_and_no_more_than_it_shows() -> None:
    tasks = {"lake": ["11"] * 10}
    far = made("<b>far</b>", {"lake": ["00"] * 10})
    (group,) = grouped([far, made("best", tasks)])
    figure = success_figure(group)
    (trace,) = figure["data"]
    assert trace["x"].tolist() == [100, 0]
    assert trace["marker"]["symbol"] == ["circle", "circle-open"]
    assert figure["layout"]["yaxis"]["ticktext"] == ["1  best", "2  &lt;b&gt;far&lt;/b&gt;"]
    (group,) = grouped([made(f"e{n}", tasks) for n in range(MAX_DRAWN + 5)])
    assert len(success_figure(group)["data"][0]["x"]) == MAX_DRAWN


def read(root: Path, serve_root: Serve) -> StoredEvaluations:
    serve_root(root)
    return stored_evaluations(within_s=60.0)


def test_evaluations_are_found_among_trainings(tmp_path: Path, serve_root: Serve) -> None:
    make_run(tmp_path / "training")
    make_evaluation(tmp_path / "e", {"lake": ["11", "10"]}, who="qwen", planned=5)
    stored = read(tmp_path, serve_root)
    (played,) = stored.played
    assert [*stored.rows] == ["e"]
    assert (played.name, played.progress, played.is_whole) == (
        "qwen at temperature 1",
        "4 of 10",
        False,
    )
    assert grouped(stored.played)[0].rows[0].here.table.success.value == 0.75


def test_what_is_played_counts_before_its_step_is_finished(
    tmp_path: Path, serve_root: Serve
) -> None:
    writer = open_evaluation(tmp_path / "e", {"lake": ["11", "10"]}, planned=5)
    try:
        (played,) = read(tmp_path, serve_root).played
        assert played.progress == "4 of 10"
    finally:
        writer.close(status="failed")


def test_an_evaluation_is_read_once(
    tmp_path: Path, serve_root: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_evaluation(tmp_path / "a", {"lake": ["11"]})
    writer = open_evaluation(tmp_path / "b", {"lake": ["10"]})
    ask, asked = evaluations.stored_outcomes, list[str]()

    def counting(run: RunReader, *steps: int) -> Any:
        asked.append(run.path.name)
        return ask(run, *steps)

    monkeypatch.setattr(evaluations, "stored_outcomes", counting)
    for _ in range(3):
        read(tmp_path, serve_root)
    assert sorted(asked) == ["a", "b"]
    writer.close(status="stopped")
    read(tmp_path, serve_root)
    assert sorted(asked) == ["a", "b", "b"]


def test_a_copy_of_an_evaluation_is_read_as_the_evaluation_is(
    tmp_path: Path, serve_root: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, attempts in (("a", "10"), ("b", "1?")):
        worlds = {"lake": [attempts, "11"], "maze": ["00"]}
        make_evaluation(tmp_path / "runs" / name, worlds, seed=len(name), cost=0.25)
    shutil.copytree(tmp_path / "runs" / "b", tmp_path / "runs" / "copy of b")  # with its run id
    stored = {played.run_id: played for played in read(tmp_path / "runs", serve_root).played}
    assert sorted(stored) == ["a", "b", "copy of b"]
    monkeypatch.setattr(queries, "answers", AnswerCache())
    assert stored == {name: played_by(name) for name in stored}


def test_what_takes_too_long_is_read_beside_the_page(tmp_path: Path, serve_root: Serve) -> None:
    for name in ("a", "b"):
        make_evaluation(tmp_path / name, {"lake": ["11", "10"]})
    serve_root(tmp_path)
    assert (stored_evaluations().num_waiting, stored_evaluations().played) == (2, ())
    assert stored_evaluations(within_s=1e-9).num_waiting == 2
    until(lambda: not stored_evaluations().num_waiting, "evaluations that were read")
    assert len(stored_evaluations().played) == 2


def test_an_evaluation_that_cannot_be_read_is_named(
    tmp_path: Path, serve_root: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_evaluation(tmp_path / "a", {"lake": ["11"]})

    def broken(*given: Any) -> Any:
        raise Problem("its files are damaged")

    monkeypatch.setattr(evaluations, "stored_outcomes", broken)
    stored = read(tmp_path, serve_root)
    assert stored.unreadable == {"a": "its files are damaged"}
    assert grouped(stored.played) == []


def test_a_mistake_while_it_is_read_beside_the_page_reaches_the_page(
    tmp_path: Path, serve_root: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_evaluation(tmp_path / "a", {"lake": ["11"]})

    def mistaken(*given: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(evaluations, "stored_outcomes", mistaken)
    with pytest.raises(ZeroDivisionError):
        read(tmp_path, serve_root)
