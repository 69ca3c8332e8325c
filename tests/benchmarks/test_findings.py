"""Findings: intervals by hand, what they say of a claim, first signs, and a page of two arms."""

import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from findings.__main__ import QUICK_ARMS, quick
from findings.arms import STARPO
from findings.claims import CLAIMS, arms_of
from findings.figures import Difference, Lead, Ranks, Split
from findings.intervals import (
    Interval,
    between,
    over_arms,
    over_seeds,
    seeds_to_decide,
    spearman,
    verdict,
)
from findings.measures import (
    ENTROPY,
    ENTROPY_UP,
    GRADIENT,
    INFORMATION,
    MEASURES,
    RETURN,
    SPREAD,
    first_move,
    halved_between,
)
from findings.page import (
    BEGIN,
    END,
    PAGE,
    TABLES,
    decided,
    in_short,
    judged,
    tables,
    undecided,
    write_page,
)
from findings.training import MOST_SEEDS, RECORD, Record, Result, missing

from echoscope.core.config.loading import load_config


def result(**changes: object) -> Result:
    """A run of ten steps whose success halves between the second and the third evaluation."""
    plain = Result(
        key="",
        arm="starpo",
        seed=0,
        steps=10,
        seconds=1.0,
        machine="",
        label="healthy",
        lost=None,
        curves={
            "success": ([0, 5, 8, 10], [0.4, 0.8, 0.3, 0.6]),
            SPREAD: (None, [0.4] * 5 + [0.1] * 5),
            ENTROPY: (None, [0.2] * 10),
        },
    )
    return replace(plain, **changes)


def test_t_interval_by_hand() -> None:
    """1, 2, 6: mean 3, sd sqrt(7), error sqrt(7/3), t(0.975, 2) = 4.3027."""
    interval = over_seeds([1.0, 2.0, 6.0])
    assert interval is not None
    assert interval.middle == pytest.approx(3.0)
    assert interval.high - 3.0 == pytest.approx(4.3027 * math.sqrt(7 / 3), abs=1e-3)
    assert interval.low + interval.high == pytest.approx(6.0)
    assert over_seeds([1.0]) is None


def test_welch_interval_by_hand() -> None:
    """Variances 2 and 18 of two values each: error sqrt(10), 100 / (1 + 81) = 1.22 degrees."""
    interval = between([1.0, 3.0], [5.0, 11.0])
    assert interval is not None
    assert interval.middle == pytest.approx(-6.0)
    assert interval.low < -6.0 - 4.3 * math.sqrt(10)  # fewer degrees of freedom than 2
    assert interval.low + interval.high == pytest.approx(-12.0)
    assert between([1.0], [2.0, 3.0]) is None


@pytest.mark.parametrize(
    ("low", "high", "expected", "border", "says"),
    [
        (1, 5, "above", 0, "agrees"),
        (-5, -1, "above", 0, "disagrees"),
        (-1, 5, "above", 0, "not told apart"),
        (1, 5, "below", 0, "disagrees"),
        (-5, -1, "below", 0, "agrees"),
        (11, 20, "above", 10, "agrees"),
        (5, 20, "above", 10, "not told apart"),
        (2, 9, "above", 10, "disagrees"),
        (-9, 9, "near", 10, "agrees"),
        (2, 9, "near", 10, "agrees"),
        (-2, 12, "near", 10, "not told apart"),
        (2, 12, "near", 10, "not told apart"),
        (11, 20, "near", 10, "disagrees"),
        (-20, -11, "near", 10, "disagrees"),
        (3, 3, "above", 0, "not told apart"),
    ],
)
def test_a_verdict_follows_from_the_interval(
    low: float, high: float, expected: str, border: float, says: str
) -> None:
    interval = Interval(middle=(low + high) / 2, low=low, high=high, num_seeds=3)
    assert verdict(interval, expected, border) == says  # type: ignore[arg-type]
    assert verdict(None, expected, border) == "not measured"  # type: ignore[arg-type]


def test_seeds_to_decide_by_hand() -> None:
    """Mean 3, sd 2.646: 5 seeds reach 2.776 sd / sqrt(5) = 3.29, 6 seeds 2.571 sd / sqrt(6)."""
    interval = over_seeds([1.0, 2.0, 6.0])
    assert interval is not None
    assert seeds_to_decide(interval, "above", 0.0, 30) == 6
    assert seeds_to_decide(interval, "above", 2.9, 30) is None
    assert seeds_to_decide(interval, "near", 10.0, 30) == 4


def test_rank_correlation_by_hand() -> None:
    """Ranks 1 2 3 4 against 1 3 2 4: 1 - 6 * 2 / (4 * 15) = 0.8."""
    values = np.array([1.0, 2.0, 3.0, 4.0])
    assert spearman(values, np.array([10.0, 30.0, 20.0, 40.0])) == pytest.approx(0.8)
    assert spearman(values, np.ones(4)) == 0.0


def test_whole_arms_are_drawn() -> None:
    """Two arms of low and two of high values: an arm drawn alone gives 0 or 1, never half of it."""
    values = np.array([0.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    interval = over_arms(lambda drawn: float(values[drawn].mean()), ["a", "b", "b", "c", "d", "d"])
    assert interval is not None
    assert interval.middle == 0.5
    assert interval.low == pytest.approx(0.0, abs=0.15)
    assert interval.high == pytest.approx(1.0, abs=0.15)
    assert over_arms(lambda drawn: 0.0, ["a", "a", "b"]) is None


def test_measures_by_hand() -> None:
    run = result()
    values = {
        name: measure(run)
        for name, (measure, _) in MEASURES.items()
        if "I(" not in name and "length" not in name
    }
    assert values["final success"] == pytest.approx(45)
    assert values["peak success"] == pytest.approx(60)
    assert values["fall from the peak"] == pytest.approx(15)
    assert values["mean success"] == pytest.approx(100 * 1.7 / 3)
    assert halved_between(run) == (5, 8)
    assert values["runs whose success halved"] == 100
    assert values["share of the run before success halved"] == pytest.approx(80)
    assert values["entropy at the end"] == pytest.approx(100)


def test_first_signs_need_three_steps_but_for_spikes_and_measurements() -> None:
    assert first_move(result(), SPREAD) == 6
    assert first_move(result(), ENTROPY_UP) is None
    curves = {
        SPREAD: (None, [0.4] * 5 + [0.1, 0.1, 0.4, 0.1, 0.1]),
        ENTROPY: (None, [0.2] * 6 + [0.4] * 4),
        RETURN: (None, [0.1, 0.1, 0.1, 0.8, 0.8, 0.8, 0.3, 0.3, 0.3, 0.3]),
        INFORMATION: ([1, 6, 11], [0.6, 1.0, 0.4]),
        GRADIENT: (None, [1.0] * 7 + [4.0, 1.0, 1.0]),
    }
    run = result(curves=curves)
    assert first_move(run, SPREAD) is None
    assert first_move(run, ENTROPY_UP) == 7
    assert first_move(run, RETURN) == 7
    assert first_move(run, INFORMATION) == 11
    assert first_move(run, GRADIENT) == 8
    with pytest.raises(ValueError, match="no rule says"):
        first_move(result(curves={"optim/lr": (None, [0.1] * 10)}), "optim/lr")


def record_of(path: Path, runs: dict[tuple[object, int], Result]) -> Record:
    record = Record(path)
    for (arm, seed), run in runs.items():
        record.add(replace(run, key=arm.key(seed), seed=seed))  # type: ignore[attr-defined]
    return record


def test_figures_read_a_record_and_a_record_reads_itself(tmp_path: Path) -> None:
    first, other = QUICK_ARMS
    high = {"success": ([0, 5, 10], [0.4, 0.8, 0.9]), SPREAD: (None, [0.4] * 10)}
    highest = high | {"success": ([0, 5, 10], [0.4, 0.7, 0.9])}
    runs = {(first, seed): result() for seed in (0, 1)}
    runs |= {
        (other, 0): result(curves=high),
        (other, 1): result(curves=highest),
        (other, 7): result(),
    }
    record = record_of(tmp_path / "record.ndjson", runs)
    again = Record(record.path)
    assert again.results == record.results
    pair = Difference(arm=other, other=first, measure="final success").interval(again)
    assert pair is not None
    assert (pair.middle, pair.num_seeds) == (pytest.approx(37.5), 2)  # seed 7 has no partner
    lead = Lead(sources=(first, other), metric=SPREAD, metric_words="spread")
    interval = lead.interval(again)
    assert interval is not None
    assert interval.middle == pytest.approx(0.5)  # halved at 6.5, moved at 6
    assert lead.levels(again) == "3 of 3 collapsed runs showed it"
    assert Split(sources=(first, other), measure="peak success").interval(again) is not None
    ranks = Ranks(sources=(first, other), metric=SPREAD, metric_words="spread")
    assert ranks.interval(again) is None  # two arms are too few
    again.keep_only([first.key(0)])
    assert list(Record(record.path).results) == [first.key(0)]


def test_what_is_in_the_record_is_not_trained_again(tmp_path: Path) -> None:
    first, other = QUICK_ARMS
    record = record_of(tmp_path / "record.ndjson", {(first, 0): result()})
    assert missing((first, other), (0, 1), record) == [(other, 0), (first, 1), (other, 1)]
    assert missing((first,), (0,), record, steps=3) == [(first, 0)]


def test_arms_load_and_differ() -> None:
    arms = arms_of()
    assert len({arm.name for arm in arms}) == len({arm.key(0) for arm in arms}) == len(arms)
    for arm in arms:
        load_config(arm.recipe, overrides=arm.settings(0))


def test_no_claim_says_what_came_out() -> None:
    for claim in CLAIMS:
        assert "agrees" not in claim.says
        assert claim.published
        assert claim.source


def test_the_committed_record_belongs_to_the_claims() -> None:
    keys = {arm.key(seed) for arm in arms_of() for seed in range(MOST_SEEDS)}
    assert set(Record(RECORD).results) <= keys


@pytest.mark.long
def test_the_page_is_that_of_the_committed_record_and_its_tables_name_everything() -> None:
    record = Record(RECORD)
    findings = [judged(claim, record) for claim in CLAIMS]
    for each in findings:
        is_decided = each.verdict in ("agrees", "disagrees")
        assert (each.sentence in decided(findings)) == is_decided
        assert not (is_decided and each.sentence in undecided(findings))
    assert f"{in_short(record, findings)}\n\n{TABLES}" in PAGE.read_text(encoding="utf-8")
    built = tables(record, findings)
    assert [claim.says for claim in CLAIMS if f"| {claim.says} |" not in built] == []
    assert [arm.name for arm in arms_of() if f"| `{arm.name}` |" not in built] == []


def test_text_around_the_markers_stays(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{BEGIN}\nold\n{END}\nAfter.\n", encoding="utf-8")
    write_page(Record(tmp_path / "record.ndjson"), page, claims=CLAIMS[:1])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("Before.\n")
    assert text.endswith("\nAfter.\n")
    assert "old" not in text
    assert "**not measured**" in text


@pytest.mark.long
def test_quick_trains_two_arms_and_writes_a_page(tmp_path: Path) -> None:
    page = quick(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert all(f"`{arm.name}`" in text for arm in QUICK_ARMS)
    assert len(Record(tmp_path / "record.ndjson").results) == len(QUICK_ARMS)
    assert STARPO.words in text
    before = (tmp_path / "record.ndjson").read_bytes()
    quick(tmp_path)  # trains nothing
    assert (tmp_path / "record.ndjson").read_bytes() == before
