"""The tiles of the page Live: a number, how it has changed, and whether the verdict rests on it."""

from __future__ import annotations

import pandas as pd
import pytest

from echoscope.dashboard.charts.tiles import NOTHING, SPARK_POINTS, Tile, tile_keys, tiles

EVAL = "eval/lake/success_rate"


def made(evidence: tuple[str, ...] = (), **columns: list[float]) -> dict[str, Tile]:
    """The tiles of a run with these metrics, by name; `__` in a key stands for a slash."""
    rows = [
        {"step": step, "key": key.replace("__", "/"), "value": value}
        for key, values in columns.items()
        for step, value in enumerate(values)
    ]
    known = sorted({row["key"] for row in rows})
    data = pd.DataFrame(rows, columns=["step", "key", "value"])
    progress = ("2 / 60", "1 s a step")
    return {tile.name: tile for tile in tiles(data, known, evidence=evidence, progress=progress)}


def test_a_fall_is_counted_from_the_best() -> None:
    tile = made(eval__lake__success_rate=[0.2, 0.85, 0.54])["Evaluation success"]
    assert (tile.value, tile.change) == ("54 %", "31 points below the best (step 1)")


def test_a_rise_is_counted_from_the_start() -> None:
    tile = made(eval__lake__success_rate=[0.2, 0.85])["Evaluation success"]
    assert tile.change == "best so far, +65 points since step 0"


def test_a_change_that_rests_on_few_episodes_names_their_number() -> None:
    data = pd.DataFrame(
        {"step": [0, 1], "key": ["rollout/success_rate"] * 2, "value": [0.25, 0.75]}
    )

    def change(*episodes: int) -> str:
        made = tiles(
            data,
            ["rollout/success_rate"],
            evidence=(),
            progress=("", ""),
            episodes=dict(enumerate(episodes)),
        )
        return {tile.name: tile for tile in made}["Training success"].change

    rise = "best so far, +50 points since step 0"
    assert change() == change(64, 64) == rise
    assert change(4, 4) == f"{rise} (4 episodes a step)"
    assert change(4, 64) == f"{rise} (4 to 64 episodes a step)"


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


def test_other_numbers_name_where_they_began() -> None:
    assert made(policy__entropy=[0.4, 1.9])["Policy entropy"].change == "was 0.4 at step 0"


def test_what_is_not_measured_is_said() -> None:
    found = made(policy__entropy=[0.4])
    assert found["Evaluation success"].change == NOTHING
    assert found["Policy entropy"].change == "measured once, at step 0"
    assert found["Step"].value == "2 / 60"


@pytest.mark.parametrize("pattern", [EVAL, "eval/*/success_rate"])
def test_the_tile_of_the_evidence_is_marked(pattern: str) -> None:
    found = made((pattern,), eval__lake__success_rate=[0.5], policy__entropy=[1.0])
    assert found["Evaluation success"].is_evidence
    assert not found["Policy entropy"].is_evidence


def test_a_course_is_sent_with_few_points() -> None:
    tile = made(policy__entropy=[float(n) for n in range(1000)])["Policy entropy"]
    assert len(tile.spark) <= SPARK_POINTS + 2


def test_only_metrics_that_the_run_has_are_read() -> None:
    assert tile_keys([EVAL, f"{EVAL}_low", "loss/total"]) == [EVAL, f"{EVAL}_low"]
