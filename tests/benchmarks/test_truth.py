"""The truth table: simulated runs are what they say, and claims are held against them exactly."""

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from echoscope.diagnostics.judge.claims import (
    Change,
    Claim,
    Dip,
    Disagreement,
    Fate,
    Independent,
    Level,
    Lost,
)

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "truth"))

from truth_families import FAMILIES, made_run
from truth_runs import EVALUATION, RETURN, SUCCESS, Draft, TruthRun, course, saturating
from truth_table import HELD_OUT, Share, Truth, TruthTable, main, score_run, truth_table

# -- courses and draws -----------------------------------------------------------------------------


def test_a_course_moves_where_it_says() -> None:
    jump = course(6, 0.5, (2, 0.1, 0))
    assert jump.values.tolist() == pytest.approx([0.5, 0.5, 0.1, 0.1, 0.1, 0.1])
    assert [(o.at, o.direction, o.kind) for o in jump.onsets] == [(2, "fall", "jump")]
    both = jump * -2 + saturating(6, 0.0, 1.0, 2.0)
    assert [(o.at, o.direction, o.kind) for o in both.onsets] == [
        (1, "rise", "ramp"),
        (2, "rise", "jump"),
    ]
    assert course(6, 0.5, (2, 0.5, 3)).onsets == ()
    paid = jump + course(6, 0.0, (2, 1.0, 0))
    assert [(o.at, o.direction) for o in paid.onsets] == [(2, "rise")]  # more gained than lost


def test_siblings_share_the_chance_of_their_prompt() -> None:
    """The variance of a row is that of coin flips times 1 + (siblings - 1) x correlation."""
    draft = Draft(rng=np.random.default_rng(0), num_rows=4000)
    draft.training(course(4000, 0.3), episodes=64, siblings=8, correlation=0.4, with_spread=True)
    seen = draft.columns[SUCCESS]
    assert seen.mean() == pytest.approx(0.3, abs=0.006)
    assert seen.var() / (0.21 / 64) == pytest.approx(1 + 7 * 0.4, rel=0.1)
    for key in ("reward/group_std_mean", "reward/zero_std_frac", "reward/hopeless_frac"):
        assert draft.columns[key].mean() == pytest.approx(draft.truth[key][0], abs=0.005)


@pytest.mark.long
def test_fixed_tasks_stay_the_same() -> None:
    draft = Draft(rng=np.random.default_rng(0), num_rows=4000)
    draft.evaluation(course(4000, 0.5), every=2, num_tasks=20)
    seen = draft.columns[EVALUATION]
    assert np.isnan(seen[1::2]).all()
    assert np.nanmean(seen) == pytest.approx(draft.truth[EVALUATION][0], abs=0.01)
    assert np.nanvar(seen) < 0.25 / 20 * 0.9  # less than coin flips: each task has its own chance


@pytest.mark.parametrize("family", FAMILIES)
def test_every_column_has_its_true_mean(family: str) -> None:
    run = made_run(family, 3)
    assert run.table.num_rows == 3 or 10 <= run.table.num_rows <= 300
    again = made_run(family, 3)
    for key, values in run.table.columns.items():
        assert np.array_equal(values, again.table.columns[key], equal_nan=True)
        if key in run.truth and family != "one spike":
            error = (values - run.truth[key])[np.isfinite(values)]
            far = 6 * error.std() / math.sqrt(len(error)) + 0.2 * error.std() + 1e-9
            assert abs(error.mean()) <= far, key
    steps = run.table.steps
    for key, onsets in run.onsets.items():
        for onset in onsets:
            row = int(np.flatnonzero(steps == onset.at)[0])
            moved = run.truth[key][row] - run.truth[key][row - 1]
            assert (moved > 0) == (onset.direction == "rise"), key


def test_there_are_enough_families_and_seeds_are_apart() -> None:
    assert len(FAMILIES) >= 30
    seen, two = made_run("hack", 0).table, made_run("hack", HELD_OUT[0]).table
    assert not np.array_equal(seen.columns[RETURN][:20], two.columns[RETURN][:20])


# -- claims against the truth ----------------------------------------------------------------------


def made(**columns: list[float]) -> TruthRun:
    """Ten rows: success .6 and then .1 from step 5 on, and a return from 1 to 3 at step 5."""
    draft = Draft(rng=np.random.default_rng(0), num_rows=10)
    draft.training(course(10, 0.6, (5, 0.1, 0)), episodes=64)
    draft.amount(RETURN, course(10, 1.0, (5, 3.0, 0)), 0.1)
    return draft.run(ends=("collapsed",), path=("healthy", "collapsed"), healthy_until=5)


RUN = made()
TRUTH = Truth(RUN)


def level(value: float, first: int, last: int, metric: str = SUCCESS) -> Level:
    low, high = value - 0.05, value + 0.05
    steps = (first, last)
    return Level(metric=metric, value=value, low=low, high=high, steps=steps, num_points=5)


def change(before: Level, after: Level, began: tuple[int, int] | None = None) -> Change:
    difference = after.value - before.value
    return Change(
        before=before, after=after, low=difference - 0.1, high=difference + 0.1, began=began
    )


FALL = change(level(0.6, 0, 4), level(0.1, 5, 9), (4, 6))
RISE = change(level(1.0, 0, 4, RETURN), level(3.0, 5, 9, RETURN), (5, 5))
LOW = level(0.1, 5, 7)


@pytest.mark.parametrize(
    ("claim", "is_true"),
    [
        (FALL, True),
        (replace(FALL, after=level(0.7, 5, 9)), False),  # says that it rose
        (change(level(0.61, 0, 2), level(0.59, 3, 4)), False),  # a difference of nothing
        (replace(FALL, after=level(0.1, 40, 50)), None),  # no row of these steps
        (Lost(change=FALL, most_left=0.2, num_points=5), True),
        (Lost(change=FALL, most_left=0.1, num_points=5), False),  # one sixth is left
        (Dip(held=level(0.6, 0, 4), bottom=LOW, now=level(0.2, 8, 9), is_rising=True,
             is_back=False), False),
        (Disagreement(up=RISE, down=FALL), True),
        (Disagreement(up=RISE, down=FALL, terms=(FALL,)), True),
        (Disagreement(up=replace(RISE, after=level(3.0, 0, 2, RETURN)), down=FALL), False),
        (Independent(since=None, is_alike=False, num_points=5), None),  # no texts
        (Fate(kind="crashed", words=""), None),
        (LOW, None),
    ],
)  # fmt: skip
def test_directions_and_kinds(claim: Claim, is_true: bool | None) -> None:
    assert TRUTH.is_true(claim, 9) is is_true


def test_a_return_is_lost_by_what_it_had_gained() -> None:
    draft = Draft(rng=np.random.default_rng(0), num_rows=30)
    draft.amount(RETURN, course(30, 100.0, (10, 102.0, 0), (20, 100.5, 0)), 0.01)
    truth = Truth(draft.run(ends=(), path=()))
    down = change(level(102.0, 10, 19, RETURN), level(100.5, 20, 29, RETURN))
    assert truth.is_true(Lost(change=down, most_left=0.3, num_points=9), 29) is True
    assert truth.is_true(Lost(change=down, most_left=0.2, num_points=9), 29) is False


def test_intervals_and_onsets() -> None:
    assert TRUTH.holds(level(0.58, 0, 4)) is True
    assert TRUTH.holds(level(0.5, 0, 4)) is False
    assert TRUTH.holds(level(0.35, 0, 9)) is True  # the mean of both
    assert TRUTH.holds(level(0.5, 0, 4, "policy/entropy")) is None
    assert TRUTH.holds(FALL) is True
    assert TRUTH.holds(replace(FALL, low=-0.3)) is False
    assert TRUTH.holds_onset(FALL) is True
    assert TRUTH.holds_onset(replace(FALL, began=(6, 8))) is False
    assert TRUTH.holds_onset(replace(FALL, began=None)) is None
    rise = change(level(0.1, 5, 7), level(0.6, 8, 9), (5, 5))
    assert TRUTH.holds_onset(rise) is None  # success never rose: its direction is counted


def test_independence_is_that_of_the_texts() -> None:
    draft = Draft(rng=np.random.default_rng(0), num_rows=20)
    draft.texts(course(20, 0.8, (10, 0.0, 0)), is_alike=True)
    truth = Truth(draft.run(ends=(), path=()))

    def claim(since: int | None, *, is_alike: bool) -> Independent:
        return Independent(since=since, is_alike=is_alike, num_points=5)

    assert truth.is_true(claim(10, is_alike=True), 19) is True
    assert truth.is_true(claim(10, is_alike=False), 19) is False
    assert truth.is_true(claim(9, is_alike=True), 19) is False
    assert truth.is_true(claim(None, is_alike=True), 19) is False


# -- the table -------------------------------------------------------------------------------------


def test_a_run_that_is_lost_is_scored() -> None:
    score = score_run("lost from 70%", 0)
    assert score.ends == Share(1, 1)
    assert score.states[-1] == "collapsed"
    assert score.delay is not None
    assert score.delay <= 10
    assert score.false_criticals.num == 0
    assert score.false_criticals.of > 20
    assert score.levels.of > 100
    assert not score.unscored


def test_rows_of_the_table_are_sums() -> None:
    scores = [score_run("return rises", 0), score_run("return rises", 1)]
    row, total = TruthTable(scores=tuple(scores)).rows()
    assert (row.num_runs, total.family) == (2, "all")
    assert row.sums["levels"] == scores[0].levels + scores[1].levels == total.sums["levels"]
    assert math.isnan(row.delay)
    assert row.sums["twins"] == Share(0, sum(s.twins.of for s in scores))


@pytest.mark.long
def test_a_small_part_of_the_table_is_as_asked() -> None:
    """Two seeds of each family: too few for a family's rates, enough for the sums."""
    table = truth_table(seeds=range(2))
    sums = table.rows()[-1].sums
    worst = "\n".join(map(str, table.worst()))
    assert sums["false_claims"].share <= 0.01, worst
    assert sums["ends"].share >= 0.97
    assert sums["false_criticals"].share <= 0.001
    assert sums["twins"].num == 0
    assert 0.92 <= sums["levels"].share <= 0.99
    assert not table.unscored()


def test_the_script_prints_the_table_and_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "truth.json"
    main(["--seeds", "1", "--family", "three rows", "--output", str(out)])
    assert "last state" in capsys.readouterr().out
    table = json.loads(out.read_text())
    assert [row["family"] for row in table["families"]] == ["three rows"]
    assert table["all"]["ends"] == {"num": 1, "of": 1}


def test_the_script_names_the_family_that_was_meant(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--family", "hacks"])
    assert "no family 'hacks'; did you mean 'hack'?" in capsys.readouterr().err
