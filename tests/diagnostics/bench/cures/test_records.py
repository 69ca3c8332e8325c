"""CureBench's records and rules: what is kept of a piece, and what counts as cured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from echoscope.diagnostics.bench.cures.kinds import kinds, setup_of, twins
from echoscope.diagnostics.bench.cures.records import (
    RecordError,
    Records,
    TrainedPiece,
    has_collapsed,
    outcome,
)
from echoscope.diagnostics.bench.cures.results import Results
from echoscope.diagnostics.judge.advice.treatments import (
    ADVICE,
    GUARDED,
    PLACEBO,
    REWOUND,
    UNTREATED,
)


def curve(levels: dict[int, float], last: int) -> dict[int, float]:
    """An evaluation every five steps; each level holds from its step on."""
    return {
        step: next(level for begins, level in reversed(levels.items()) if begins <= step)
        for step in range(0, last + 1, 5)
    }


FALLEN = TrainedPiece(
    of="bandit-rate",
    seed=0,
    arm=UNTREATED,
    success=curve({0: 0.5, 10: 0.8, 20: 0.1}, 85),
    criticals=(25,),
    alarm=25,
    rules=("FORMAT_COLLAPSE",),
    checkpoint=15,
    steps=85,
    seconds=60.5,
)
HELD = TrainedPiece(
    of="bandit-rate",
    seed=0,
    arm="lr-tenth",
    begins=15,
    settings={"optim.lr": 5e-4},
    success=curve({0: 0.7}, 75),
    steps=75,
    seconds=40.0,
)


def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    records = Records(tmp_path)
    records.add(FALLEN)
    records.add(HELD)
    assert Records(tmp_path).pieces == {FALLEN.key: FALLEN, HELD.key: HELD}


def test_a_line_that_a_kill_cut_off_is_replaced_by_the_next(tmp_path: Path) -> None:
    Records(tmp_path).add(FALLEN)
    path = tmp_path / "bandit-rate.ndjson"
    path.write_bytes(path.read_bytes() + HELD.to_line().encode()[:30])
    records = Records(tmp_path)
    assert list(records.pieces) == [FALLEN.key]
    records.add(HELD)
    assert list(Records(tmp_path).pieces) == [FALLEN.key, HELD.key]


def test_a_whole_line_that_is_no_record_is_named(tmp_path: Path) -> None:
    Records(tmp_path).add(FALLEN)
    path = tmp_path / "bandit-rate.ndjson"
    path.write_text(path.read_text() + '{"of": 3}\n')
    with pytest.raises(RecordError, match=r"bandit-rate.ndjson, line 2, is no record"):
        Records(tmp_path)


def test_cured_is_80_percent_of_the_best_without_a_late_critical_alarm() -> None:
    judged = outcome(HELD, FALLEN)
    assert judged is not None
    assert (judged.is_cured, judged.steps_lost) == (True, 10)
    assert judged.share == pytest.approx(0.7 / 0.8)
    early, late = (replace(HELD, criticals=(step,)) for step in (25, 26))
    assert [outcome(arm, FALLEN).is_cured for arm in (early, late)] == [True, False]  # type: ignore[union-attr]
    worse = replace(HELD, success=curve({0: 0.63}, 75))
    assert not outcome(worse, FALLEN).is_cured  # type: ignore[union-attr]


def test_a_run_that_recovers_by_itself_has_not_collapsed() -> None:
    assert has_collapsed(FALLEN)
    assert not has_collapsed(replace(FALLEN, success=curve({0: 0.8, 20: 0.1, 60: 0.6}, 85)))
    assert not has_collapsed(replace(FALLEN, alarm=None, criticals=()))


def test_a_run_without_a_checkpoint_to_go_back_to_is_not_judged() -> None:
    assert outcome(HELD, replace(FALLEN, checkpoint=None)) is None


def recorded(folder: Path, *pieces: TrainedPiece) -> Results:
    """The results of pieces that were trained with the present setup."""
    records = Records(folder)
    for piece in pieces:
        subject = kinds().get(piece.of) or twins()[piece.of]
        records.add(replace(piece, setup=setup_of(subject, piece.arm)))
    return Results(records)


def test_to_rewind_alone_is_the_untreated_run_seen_from_the_checkpoint(tmp_path: Path) -> None:
    results = recorded(tmp_path, FALLEN)
    ((untreated, judged),) = results.outcomes(kinds()["bandit-rate"], REWOUND)
    assert judged.piece == untreated
    assert (judged.is_cured, judged.steps_lost) == (False, 10)


def test_a_live_change_is_not_repeated_by_rewinding_so_that_arm_is_trained(tmp_path: Path) -> None:
    results = recorded(tmp_path, replace(FALLEN, of="bandit-rate-raised"))
    assert results.outcomes(kinds()["bandit-rate-raised"], REWOUND) == []


def test_a_record_of_another_setup_is_out_of_date(tmp_path: Path) -> None:
    Records(tmp_path).add(replace(FALLEN, setup="older"))
    assert Results(Records(tmp_path)).collapsed(kinds()["bandit-rate"]) == []


def test_an_arm_from_another_checkpoint_or_of_other_advice_is_out_of_date(tmp_path: Path) -> None:
    fallen = replace(FALLEN, advice={"optim.lr": 1e-4})
    advised = replace(HELD, arm=ADVICE, advice={"optim.lr": 1e-4})
    kind = kinds()["bandit-rate"]
    results = recorded(tmp_path / "now", fallen, HELD, advised)
    assert [len(results.outcomes(kind, arm)) for arm in (HELD.arm, ADVICE)] == [1, 1]
    results = recorded(tmp_path / "advice", fallen, replace(advised, advice={"optim.lr": 2e-4}))
    assert results.outcomes(kind, ADVICE) == []
    results = recorded(tmp_path / "checkpoint", replace(fallen, checkpoint=5), HELD, advised)
    assert [results.outcomes(kind, arm) for arm in (HELD.arm, ADVICE)] == [[], []]


def test_a_kind_counts_once_three_of_five_seeds_collapse(tmp_path: Path) -> None:
    healthy = replace(FALLEN, success=curve({0: 0.8}, 60), criticals=(), alarm=None, steps=60)
    counts = []
    for seed, piece in enumerate((FALLEN, FALLEN, healthy, FALLEN)):
        results = recorded(tmp_path, replace(piece, seed=seed))
        result = next(each for each in results.kinds() if each.kind.name == "bandit-rate")
        counts.append((result.collapsed.held, result.collapsed.of, result.counts))
    assert counts == [(1, 1, None), (2, 2, None), (2, 3, None), (3, 4, True)]


def test_of_more_than_five_seeds_as_large_a_share_must_collapse(tmp_path: Path) -> None:
    """Seeds set aside count for that as well: three of ten are not enough."""
    healthy = replace(FALLEN, success=curve({0: 0.8}, 60), criticals=(), alarm=None, steps=60)
    counts = []
    for seed in range(8):
        piece = FALLEN if seed < 3 else healthy
        results = recorded(tmp_path, replace(piece, seed=seed))
        result = next(each for each in results.kinds() if each.kind.name == "bandit-rate")
        counts.append(result.counts)
    assert counts == [None, None, True, True, True, False, False, False]


def test_a_treatment_is_shown_to_help_only_where_it_beats_the_controls(tmp_path: Path) -> None:
    seeds = range(5)
    placebo = replace(FALLEN, arm=PLACEBO, begins=15, steps=75)
    few = recorded(tmp_path, *(replace(FALLEN, seed=s) for s in seeds), HELD)
    assert [(m.rate.held, m.rate.of, m.is_shown) for m in few.measured()] == [(1, 1, False)]
    all_held = recorded(
        tmp_path,
        *(replace(HELD, seed=seed) for seed in seeds),
        *(replace(placebo, seed=seed) for seed in seeds),
    )
    (held,) = all_held.measured()
    assert (held.symptom, held.treatment.name, held.is_shown) == (
        "FORMAT_COLLAPSE",
        "lr-tenth",
        True,
    )
    assert (held.rate.held, held.rate.of, held.control.held, held.control.of) == (5, 5, 0, 5)


def test_what_a_treatment_costs_a_healthy_twin_is_a_difference_of_success(tmp_path: Path) -> None:
    twin = TrainedPiece(of="bandit", seed=0, arm=UNTREATED, steps=80, seconds=1.0)
    healthy, treated = (
        replace(twin, arm=arm, success=curve({0: 0.5, 60: level}, 80))
        for arm, level in ((UNTREATED, 0.9), ("lr-tenth", 0.85))
    )
    (effect,) = recorded(tmp_path, healthy, treated).side_effects()
    assert effect.mean == pytest.approx(-0.05)


def test_every_kind_is_a_twin_with_something_changed_and_has_a_placebo() -> None:
    assert {kind.twin.world for kind in kinds().values()} == {
        "bandit",
        "countdown",
        "frozen_lake",
        "sokoban",
    }
    assert {twin.policy for twin in twins().values()} == {"tiny", "tiny-puzzles"}
    for kind in kinds().values():
        assert kind.overrides or kind.live, kind.name
        assert PLACEBO in kind.arms, kind.name
        assert (REWOUND in kind.arms) == bool(kind.live), kind.name


TWIN = TrainedPiece(
    of="bandit", seed=0, arm=UNTREATED, success=curve({0: 0.5, 40: 0.9}, 80), steps=80, seconds=9.0
)
TREATED = replace(
    TWIN, of="bandit-rate", arm=GUARDED, success=curve({0: 0.5, 50: 0.8}, 80), rewinds=(12,)
)


def test_a_guarded_run_is_judged_by_what_its_healthy_twin_ends_with(tmp_path: Path) -> None:
    given_up = replace(TREATED, seed=1, status="stopped", steps=70)
    others = (replace(FALLEN, seed=1), replace(TWIN, seed=1))
    results = recorded(tmp_path, FALLEN, TWIN, TREATED, given_up, *others)
    (kind,) = results.guards()
    assert (kind.subject, kind.rewinds) == (kinds()["bandit-rate"], (1, 1))
    assert (kind.held.held, kind.held.of) == (1, 2)
    assert kind.share == pytest.approx((0.8 / 0.9 + 0) / 2)


def test_a_guard_has_nothing_to_show_on_a_seed_that_does_not_collapse(tmp_path: Path) -> None:
    healthy = replace(FALLEN, success=curve({0: 0.8}, 60), criticals=(), alarm=None, steps=60)
    assert recorded(tmp_path, healthy, TWIN, TREATED).guards() == []


def test_a_guarded_twin_that_was_left_alone_is_the_twin(tmp_path: Path) -> None:
    """A guard without a critical alarm changes no bit of a run."""
    guarded = replace(TWIN, arm=GUARDED)
    results = recorded(tmp_path, FALLEN, TREATED, guarded)
    kind, twin = results.guards()
    assert (kind.held.held, twin.untouched.held, twin.untouched.of) == (1, 1, 1)
    touched = recorded(tmp_path / "touched", FALLEN, TREATED, replace(guarded, rewinds=(20,)))
    kind, twin = touched.guards()
    assert (kind.held.of, twin.untouched.held) == (0, 0)
