"""Three signs of a collapse to come; each is a warning with what to change, and nothing else is."""

from __future__ import annotations

import pytest

from echoscope.diagnostics.judge.advice.luck import LUCK_SHARE
from echoscope.diagnostics.tools.prospects import FAR, OUTWEIGHS, Signs, luck_of, prospects


def settings_of(signs: Signs) -> list[dict[str, object]]:
    return [dict(prospect.settings) for prospect in prospects(signs)]


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert settings_of(Signs()) == []
    assert luck_of([]) != luck_of([])  # NaN


@pytest.mark.parametrize(("luck", "divides", "is_said"), [(0.8, True, 1), (0.8, False, 0)])
def test_luck_harms_where_the_advantage_divides_by_the_spread(
    luck: float, divides: bool, is_said: int
) -> None:
    signs = Signs(luck=luck, divides_by_spread=divides)
    assert settings_of(signs) == [{"advantage.kind": "rloo"}] * is_said


def test_little_luck_is_no_sign() -> None:
    assert settings_of(Signs(luck=LUCK_SHARE - 0.01, divides_by_spread=True)) == []


def test_steps_that_move_the_policy_far_are_a_sign_and_the_rate_that_is_not() -> None:
    """Movement goes with the square of the rate; the advice leaves half of the limit."""
    assert settings_of(Signs(shift=FAR - 0.01, lr=4e-3)) == []
    assert settings_of(Signs(shift=100 * FAR, lr=4e-3)) == [{"optim.lr": 2e-4}]


def test_a_bonus_that_nearly_outweighs_the_task_is_a_sign() -> None:
    assert settings_of(Signs(bonus=OUTWEIGHS - 0.01)) == []
    assert settings_of(Signs(bonus=OUTWEIGHS)) == [{"loss.entropy_coef": 0}]


def test_each_sentence_names_the_number_and_the_horizon() -> None:
    signs = Signs(luck=0.8, divides_by_spread=True, shift=1.0, lr=4e-3, bonus=0.3)
    texts = [prospect.text for prospect in prospects(signs)]
    start = "The run is likely to collapse within 100 steps:"
    assert len(texts) == 3
    assert all(text.startswith(start) for text in texts)
    for number, text in zip(("80 %", "1 nats", "30 %"), texts, strict=True):
        assert number in text
