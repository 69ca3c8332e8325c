"""What a measurement will take, and what the budget pays for."""

from __future__ import annotations

import pytest

from echoscope.diagnostics.measure.costs import URGENT_SHARE, Purse


def test_what_a_measurement_will_take_is_known_from_the_rollouts_and_then_from_itself() -> None:
    purse = Purse()
    assert purse.expected_s("information", 300, 10.0) == 30
    purse.paid("information", 20.0, 400)
    assert purse.expected_s("information", 300, 10.0) == 15  # 20 tokens a second
    assert purse.expected_s("gradients", 300, 10.0) == 30


def test_a_purse_holds_the_budget_of_what_was_trained_and_more_where_a_sign_shows() -> None:
    purse = Purse(trained_s=1000.0, spent_s=20.0)
    assert purse.allowed_s(0.025) == pytest.approx(5)
    assert purse.allowed_s(0.025, is_urgent=True) == pytest.approx(URGENT_SHARE * 25 - 20)
    # 30 s and the 20 spent ones are the budget of 2000 s, or of 20 steps.
    assert purse.step_to_pay(30.0, 0.025, step=10) == 20
