"""Channels: level, baseline, strength, persistence, hysteresis, onset."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echoscope.diagnostics.judge.courses.changes import Channel
from echoscope.diagnostics.judge.courses.channels import ChannelSpec
from echoscope.diagnostics.judge.courses.course import median, observed, robust_scale
from echoscope.diagnostics.judge.rules.base import describe

RATE = ChannelSpec(name="rate", keys=("rate",), direction="fall", raise_at=0.2)
ENTROPY = ChannelSpec(
    name="entropy",
    keys=("entropy",),
    direction="rise",
    transform="log",
    raise_at=math.log(2),
)


def rows_of(key: str, values: list[float], every: int) -> list[dict[str, float]]:
    """A log with a row at every step, and a metric in every so many of them, and in the last."""
    last = (len(values) - 1) * every
    return [{} if step % every else {key: values[step // every]} for step in range(last + 1)]


def fed(spec: ChannelSpec, values: list[float], every: int = 1) -> Channel:
    channel = Channel(spec=spec)
    for step, row in enumerate(rows_of(spec.keys[0], values, every)):
        channel.update(step, row)
    return channel


def thinned(spec: ChannelSpec, values: list[float], every: int) -> Channel:
    """A log with a row at every so many steps, and the metric in each of them."""
    channel = Channel(spec=spec)
    for n, value in enumerate(values):
        channel.update(n * every, {spec.keys[0]: value})
    return channel


def test_robust_scale_of_normal_noise() -> None:
    noise = np.random.default_rng(0).standard_normal(20_000)
    assert robust_scale(list(noise)) == pytest.approx(1.0, abs=0.03)
    assert robust_scale([]) == 0.0


@given(st.lists(st.floats(-1e6, 1e6), min_size=1))
def test_median_is_numpys(values: list[float]) -> None:
    assert median(values) == pytest.approx(float(np.median(values)))


def test_words_say_of_how_many_rows_each_number_is_the_median() -> None:
    """A reader who looks up the value of the step finds another number."""
    fallen = fed(replace(RATE, window=3), [0.9, 0.8, 0.9, 0.9, 0.9, 0.7, 0.5, 0.4, 0.3])
    assert describe(fallen) == (
        "rate: 0.9 (highest, step 4) -> 0.4 (step 8), each the median of 3 rows"
    )
    assert "rows" not in describe(fed(replace(RATE, window=1), [0.9, 0.8, 0.4]))


def test_a_fall_is_raised_after_it_persisted() -> None:
    """0.9 until row 9, then 0.6: the median of five is 0.6 from row 12, three times by row 14."""
    values = [0.9] * 10 + [0.6] * 5
    assert not fed(RATE, values[:-1]).is_raised
    channel = fed(RATE, values)
    assert channel.is_raised
    assert channel.onset_step == 10
    assert channel.last_quiet_step == 11
    assert channel.baseline == 0.9
    assert channel.strength == pytest.approx(1.5)  # 0.3 / 0.2


def test_a_dip_of_two_steps_is_not_raised() -> None:
    channel = fed(RATE, [0.9] * 10 + [0.1, 0.1] + [0.9] * 5)
    assert channel.latest_raise_step is None


def test_it_clears_below_half_the_raise_level_only() -> None:
    """Raised at 0.6; 0.75 is 0.15 below the best: more than half of 0.2, so it stays raised."""
    assert fed(RATE, [0.9] * 10 + [0.6] * 8 + [0.75] * 20).is_raised
    cleared = fed(RATE, [0.9] * 10 + [0.6] * 8 + [0.85] * 20)
    assert not cleared.is_raised
    assert cleared.onset_step is None
    assert cleared.latest_raise_step == 14


def test_one_drastic_observation_leans_before_the_level_moves() -> None:
    """0.95 to 0.5 is 2.25 distances; the median of five has not moved. A dip to 0.6 is 1.75."""
    channel = fed(RATE, [0.95] * 10 + [0.5])
    assert channel.level == 0.95
    assert channel.leans
    assert not channel.is_raised
    assert not fed(RATE, [0.95] * 10 + [0.6]).leans


def test_noise_needs_a_larger_fall() -> None:
    """Noise of 0.2 a step: the median of five has a standard error of about 0.11."""
    rng = np.random.default_rng(1)
    noisy = [float(x) for x in 0.7 + 0.2 * rng.standard_normal(60)]
    channel = fed(RATE, noisy)
    assert channel.noise == pytest.approx(0.2 * 1.2533 / math.sqrt(5), rel=0.4)
    assert channel.threshold == pytest.approx(4 * channel.noise)
    assert channel.latest_raise_step is None


def test_a_steady_trend_is_no_noise() -> None:
    channel = fed(RATE, [1 - 0.01 * n for n in range(40)])
    assert channel.noise == pytest.approx(0.0, abs=1e-12)
    assert channel.interval is None
    assert channel.is_raised


def test_rare_measurements_are_not_smoothed() -> None:
    """Every fifth row: one fall of 0.3 (strength 1.5) counts at once, two of 0.2 in a row do."""
    assert fed(RATE, [0.9, 0.9, 0.6], every=5).is_raised
    assert not fed(RATE, [0.9, 0.9, 0.7], every=5).is_raised
    assert fed(RATE, [0.9, 0.9, 0.69, 0.69], every=5).is_raised


@pytest.mark.parametrize("every", [10, 40])
def test_a_log_of_every_nth_step_is_smoothed_like_one_of_every_step(every: int) -> None:
    """Its rows are as noisy: one bad row, or two, are no fall; a fall needs as many rows."""
    for values in ([0.9] * 10 + [0.1, 0.1] + [0.9] * 5, [0.9] * 10 + [0.6] * 5, [0.9, 0.9, 0.1]):
        dense, thin = fed(RATE, values), thinned(RATE, values, every)
        assert thin.is_raised is dense.is_raised
        assert thin.level == dense.level
        assert (thin.gap, thin.window, thin.is_sparse) == (1, RATE.window, False)


def test_an_evaluation_is_as_rare_as_the_steps_between_two() -> None:
    """What stands between two evaluations in the log makes no difference to either."""
    spec = replace(RATE, has_own_schedule=True)
    values = [0.9, 0.9, 0.69, 0.69]
    dense, thin = fed(spec, values, every=10), thinned(spec, values, every=10)
    assert dense.is_raised
    assert thin.is_raised
    assert (dense.gap, thin.gap) == (10, 10)


def test_the_first_of_rare_measurements_counts_as_best() -> None:
    channel = fed(RATE, [0.66, 0.3], every=10)
    assert channel.high == 0.66
    assert channel.high_step == 0
    assert channel.is_raised


def test_logarithms_measure_factors() -> None:
    channel = fed(ENTROPY, [1.0] * 10 + [2.2] * 6)
    assert channel.is_raised
    assert channel.baseline == pytest.approx(1.0)
    assert channel.shown_level == pytest.approx(2.2)
    assert channel.strength == pytest.approx(math.log(2.2) / math.log(2))


def test_shares_of_a_metric_that_may_be_negative() -> None:
    """From -1 to 3 and down to 1: half of the way, not a third of the peak."""
    spec = replace(RATE, is_share=True, raise_at=0.5)
    channel = fed(spec, [-1.0] * 6 + [3.0] * 8 + [1.0] * 8)
    assert channel.strength == pytest.approx(1.0)


def test_against_the_start() -> None:
    spec = replace(RATE, against="start", raise_at=0.3)
    channel = fed(spec, [0.5] * 10 + [0.9] * 10 + [0.3] * 10)
    assert channel.baseline == 0.5
    assert channel.strength == pytest.approx(0.2 / 0.3)


def test_a_spike_against_the_recent_past() -> None:
    spec = replace(ENTROPY, against="recent", raise_at=6.0, persist=1, warmup=10)
    values = [1.0 + 0.01 * (n % 3) for n in range(30)]
    assert fed(spec, values).latest_raise_step is None
    spiked = fed(spec, [*values, 4.0, 1.0, 1.0])
    assert spiked.latest_raise_step == 30
    assert not spiked.is_raised


def test_a_better_source_takes_over_and_is_kept() -> None:
    spec = replace(RATE, keys=("probe/*/rate", "rate"))
    channel = fed(replace(spec, keys=("rate", "x")), [0.5] * 3)
    channel.spec = spec
    channel.update(3, {"probe/a/rate": 0.9, "probe/b/rate": 0.7, "rate": 0.5})
    assert channel.key == "probe/*/rate"
    assert channel.value == pytest.approx(0.8)
    assert channel.count == 1
    channel.update(4, {"rate": 0.1})
    assert channel.value == pytest.approx(0.8)


def test_tags_measured_at_odd_steps_do_not_look_like_a_fall() -> None:
    """An easy tag at every tenth step, a hard one five steps later: their mean stays 0.5."""
    channel = Channel(spec=replace(RATE, keys=("eval/*/rate",)))
    for step in range(0, 100, 5):
        easy = step % 10 == 0
        channel.update(step, {f"eval/{'easy' if easy else 'hard'}/rate": 0.9 if easy else 0.1})
        assert not channel.is_raised
    assert channel.value == pytest.approx(0.5)
    assert channel.key == "eval/*/rate"


def test_a_tag_that_joins_later_starts_the_baseline_anew() -> None:
    channel = Channel(spec=replace(RATE, keys=("eval/*/rate",)))
    for step in range(10):
        channel.update(step, {"eval/a/rate": 0.9})
    for step in range(10, 30):
        channel.update(step, {"eval/a/rate": 0.9, "eval/b/rate": 0.1})
    assert channel.high == pytest.approx(0.5)
    assert channel.latest_raise_step is None


EVAL = ChannelSpec(
    name="eval",
    keys=("eval/*/success_rate",),
    direction="fall",
    is_share=True,
    raise_at=0.5,
    has_own_schedule=True,
)


def test_half_way_and_then_across_is_enough_for_a_rare_metric() -> None:
    """Best 0.6: 0.4 is two thirds of the distance of 0.3, 0.28 more than all of it."""
    assert fed(EVAL, [0.6, 0.6, 0.4, 0.28], every=10).is_raised
    assert not fed(EVAL, [0.6, 0.6, 0.6, 0.28], every=10).is_raised
    assert not fed(EVAL, [0.6, 0.6, 0.4, 0.32], every=10).is_raised


def test_what_is_not_there_changes_nothing() -> None:
    channel = fed(RATE, [0.9] * 10)
    before = replace(channel)
    channel.update(11, {"rate": math.nan, "other": 1.0})
    assert channel == replace(before, rows_since=1)
    assert observed({"a/b/c": math.nan}, ("a/*/c",)) == {}
