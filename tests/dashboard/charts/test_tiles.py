"""The tiles of the page Live: a number, how it has changed, in the words of the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_run import add_steps, open_writer

from echoscope.dashboard.charts.tiles import NOTHING, Tile, claim_words, tile_keys, tiles
from echoscope.dashboard.data.tables import OUTLINE_PARTS, Outline, outlines
from echoscope.diagnostics.judge.alarms import RunState
from echoscope.diagnostics.judge.claims import Change, Claim, Dip, Level, Lost
from echoscope.diagnostics.judge.record import Evidence, Verdict
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.store.reader import open_run

EVAL, TRAIN, SPREAD = "eval/lake/success_rate", "rollout/success_rate", "reward/zero_std_frac"


def outline(values: list[float]) -> Outline:
    """Of a short run, one value a step."""
    return Outline(
        first_step=0,
        first=values[0],
        last=values[-1],
        num_points=len(values),
        means=tuple(values),
    )


def made(verdict: Verdict | None = None, **columns: list[float]) -> dict[str, Tile]:
    """The tiles of a run with these metrics, by name; `__` in a key stands for a slash."""
    outlined = {key.replace("__", "/"): outline(values) for key, values in columns.items()}
    progress = ("2 / 60", "1 s a step")
    made_tiles = tiles(outlined, sorted(outlined), verdict=verdict, progress=progress)
    return {tile.name: tile for tile in made_tiles}


def level(value: float, steps: tuple[int, int] = (0, 9), metric: str = TRAIN) -> Level:
    ends = {"low": value - 0.04, "high": value + 0.04}
    return Level(metric=metric, value=value, steps=steps, num_points=10, **ends)


def change(before: float, after: float) -> Change:
    return Change(before=level(before), after=level(after), low=0.0, high=0.0)


def says(*claims: Claim) -> Verdict:
    return replace(Diagnosis().verdict(), claims=claims)


@pytest.mark.parametrize(
    ("claim", "tile_text"),
    [
        (change(0.125, 0.81), "rose from 13 % to 81 %"),
        (change(0.81, 0.12), "fell from 81 % to 12 %"),
        (Lost(change=change(0.81, 0.12), most_left=0.2, num_points=9), "fell from 81 % to 12 %"),
        (
            Dip(held=level(0.8), bottom=level(0.2), now=level(0.6), is_rising=True, is_back=False),
            "fell to 20 %, then rose to 60 %",
        ),
        (level(0.5), "mean 50 % (46 to 54), no trend"),
        (level(1.5, metric="reward/return_mean"), "mean 1.5 (1.46 to 1.54), no trend"),
    ],
)
def test_a_tile_says_what_the_verdict_claims(claim: Claim, tile_text: str) -> None:
    assert claim_words(claim) == tile_text


def test_the_first_claim_about_a_metric_is_shown_and_no_highest_step() -> None:
    """A single high step of a flat run was called the best, and what followed a fall."""
    tile = made(says(level(0.5)), rollout__success_rate=[0.5, 0.8, 0.4])["Training success"]
    assert (tile.value, tile.change) == ("40 %", "mean 50 % (46 to 54), no trend")
    both = says(change(0.4, 0.5), level(0.5))
    tile = made(both, rollout__success_rate=[0.5, 0.8, 0.4])["Training success"]
    assert tile.change == "rose from 40 % to 50 %"


def test_a_claim_over_all_tags_is_about_each() -> None:
    claim = level(0.5, metric="eval/*/success_rate")
    tile = made(says(claim), eval__lake__success_rate=[0.2, 0.85])["Evaluation success"]
    assert tile.change == "mean 50 % (46 to 54), no trend"


def test_without_a_verdict_a_change_is_counted_from_the_start() -> None:
    tile = made(eval__lake__success_rate=[0.2, 0.85])["Evaluation success"]
    assert tile.change == "+65 points since step 0"


def test_a_long_run_has_its_own_first_and_last_values_and_means_between(
    tmp_path: Path,
) -> None:
    """A straight rise with a spike in every third step; 144 steps are 48 ranges of three.

    The first range holds 0, 0.001, 0.002 and one spike of 1: its mean is 0.001 + 1 / 3.
    """
    writer = open_writer(tmp_path / "long")
    values = [step / 1000 + (step % 3 == 1) for step in range(144)]
    add_steps(writer, "long", range(144), lambda step: {"policy/entropy": values[step]})
    writer.close(status="finished")
    entropy = outlines(open_run(tmp_path / "long"), ["policy/entropy"])["policy/entropy"]
    assert (entropy.first_step, entropy.first) == (0, values[0])
    assert entropy.last == values[-1]
    assert (entropy.num_points, len(entropy.means)) == (144, OUTLINE_PARTS)
    assert entropy.means[0] == pytest.approx(0.001 + 1 / 3)
    assert [b - a for a, b in zip(entropy.means, entropy.means[1:], strict=False)] == pytest.approx(
        [0.003] * 47
    )


def test_an_evaluation_has_its_interval() -> None:
    tile = made(
        eval__lake__success_rate=[0.5],
        eval__lake__success_rate_low=[0.4],
        eval__lake__success_rate_high=[0.6],
    )["Evaluation success"]
    assert tile.value == "50 % (40 to 60)"


def test_groups_with_signal_are_those_with_spread() -> None:
    tile = made(reward__zero_std_frac=[0.25, 0.75])["Groups with signal"]
    assert (tile.value, tile.change) == ("25 %", "-50 points since step 0")
    assert tile.spark == (0.75, 0.25)


def test_an_improvement_is_not_marked_as_evidence() -> None:
    """Groups with signal rose from 12.5 to 37.5 %, and an orange edge called that evidence of the
    collapse: the alarm rests on the same metric. A tile says no more than without the evidence."""
    improved = Evidence(
        metric=SPREAD, before=0.875, after=0.625, interval=(0.5, 0.75), steps=(1, 12), words="-"
    )
    collapse = replace(says(), state=RunState.COLLAPSING, kinds=("STARVED_SIGNAL",))
    columns = {"reward__zero_std_frac": [0.875, 0.625], "rollout__success_rate": [0.5, 0.25]}
    name = "Groups with signal"
    plain = made(collapse, **columns)[name]
    tile = made(replace(collapse, evidence=(improved,)), **columns)[name]
    assert (tile.value, tile.change) == ("37.5 %", "+25 points since step 0")
    assert replace(tile, chart=plain.chart) == plain


def test_other_numbers_name_where_they_began() -> None:
    assert made(policy__entropy=[0.4, 1.9])["Policy entropy"].change == "was 0.4 at step 0"


def test_what_is_not_measured_is_said() -> None:
    made_tiles = made(policy__entropy=[0.4])
    assert made_tiles["Evaluation success"].change == NOTHING
    assert made_tiles["Policy entropy"].change == "measured once, at step 0"
    assert made_tiles["Step"].value == "2 / 60"


def test_a_mean_reward_is_no_success() -> None:
    made_tiles = made(reward__return_mean=[0.2, 0.8])
    assert "Training success" not in made_tiles
    tile = made_tiles["Mean reward"]
    assert (tile.value, tile.change) == ("0.8", "was 0.2 at step 0")


def test_only_metrics_that_the_run_has_are_read() -> None:
    assert tile_keys([EVAL, f"{EVAL}_low", "loss/total"]) == [EVAL, f"{EVAL}_low"]
