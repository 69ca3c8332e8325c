"""The four regimes, their borders and their hysteresis."""

import pytest

from echoscope.diagnostics.judge.regimes import Point, Regime, RegimeTracker, classify, point_of


def at(entropy: float, dependence: float, width: float = 0.0) -> Point:
    return Point(
        entropy=entropy,
        dependence=dependence,
        entropy_interval=(entropy - width, entropy + width),
        dependence_interval=(dependence - width, dependence + width),
    )


@pytest.mark.parametrize(
    ("entropy", "dependence", "regime"),
    [
        (1.8, 0.7, Regime.DIVERSE),
        (1.8, 0.1, Regime.TEMPLATE_COLLAPSE),
        (0.2, 0.7, Regime.COMPRESSED),
        (0.2, 0.1, Regime.LOW_ENTROPY_COLLAPSE),
    ],
)
def test_four_corners(entropy: float, dependence: float, regime: Regime) -> None:
    """Start 2.0 and best 0.8: the borders are 0.5 nats and 0.2."""
    assert classify(at(entropy, dependence), start_entropy=2.0, best_dependence=0.8) is regime


def test_an_interval_over_a_border_decides_nothing() -> None:
    found = classify(at(1.8, 0.2, width=0.05), start_entropy=2.0, best_dependence=0.8)
    assert found is Regime.UNDETERMINED


def test_no_dependence_is_low_even_if_there_never_was_any() -> None:
    found = classify(at(1.8, 0.03), start_entropy=2.0, best_dependence=0.04)
    assert found is Regime.TEMPLATE_COLLAPSE


def row(entropy: float, dependence: float) -> dict[str, float]:
    return {
        "info/first_turn/conditional_entropy_per_token": entropy,
        "info/first_turn/dependence": dependence,
    }


def test_it_takes_two_measurements_to_change() -> None:
    tracker = RegimeTracker()
    assert tracker.observe(row(2.0, 0.8)) is Regime.UNDETERMINED
    assert tracker.observe(row(2.0, 0.8)) is Regime.DIVERSE
    assert tracker.observe(row(2.0, 0.05)) is Regime.DIVERSE
    assert tracker.observe(row(2.0, 0.8)) is Regime.DIVERSE
    assert tracker.observe(row(2.0, 0.05)) is Regime.DIVERSE
    assert tracker.observe({}) is Regime.DIVERSE
    assert tracker.observe(row(2.0, 0.05)) is Regime.TEMPLATE_COLLAPSE


def text(entropy: float, dependence: float) -> dict[str, float]:
    return {"text/conditional_entropy": entropy, "text/dependence": dependence}


def test_text_says_nothing_between_cross_scores() -> None:
    """The text's H(Z|X) is on another scale: mixed in, it would look like another regime."""
    tracker = RegimeTracker()
    for _ in range(0, 40, 10):
        tracker.observe(row(0.5, 0.8) | text(4.0, 0.05))
        tracker.observe(text(4.0, 0.05))
        tracker.observe(text(4.0, 0.05))
    assert tracker.regime is Regime.DIVERSE
    assert tracker.borders() == (0.125, 0.2)


def test_cross_scores_after_text_start_anew() -> None:
    tracker = RegimeTracker()
    for _ in range(3):
        tracker.observe(text(4.0, 0.9))
    for _ in range(3, 6):
        tracker.observe(row(0.5, 0.2))
    assert tracker.regime is Regime.DIVERSE
    assert tracker.source == "first_turn"
    assert tracker.best_dependence == 0.2


def test_intervals_come_from_information_over_its_ceiling() -> None:
    """Four prompts: ln 4 = 1.386 nats."""
    point = point_of(
        {
            "info/first_turn/conditional_entropy_per_token": 1.0,
            "info/first_turn/dependence": 0.5,
            "info/first_turn/num_prompts": 4.0,
            "info/first_turn/mutual_information_low": 0.3466,
            "info/first_turn/mutual_information_high": 1.0397,
        }
    )
    assert point is not None
    assert point.dependence_interval == pytest.approx((0.25, 0.75), abs=1e-3)
    assert point.entropy_interval == (1.0, 1.0)


def test_text_alone_gives_a_point_too() -> None:
    point = point_of({"text/conditional_entropy": 3.0, "text/dependence": 0.4})
    assert point is not None
    assert point.dependence == 0.4
    assert point_of({"text/dependence": 0.4}) is None
