"""Five signs of a collapse to come; each is a warning with what to change, and nothing else is."""

from __future__ import annotations

import pytest

from echoscope.diagnostics.judge.advice.luck import LUCK_SHARE
from echoscope.diagnostics.tools.prospects import (
    FAR,
    GROWN,
    OUTWEIGHS,
    PAID,
    Signs,
    Term,
    luck_of,
    prospects,
)


def settings_of(signs: Signs) -> list[dict[str, object]]:
    return [dict(prospect.settings) for prospect in prospects(signs)]


def test_nothing_is_said_of_what_is_not_known() -> None:
    assert settings_of(Signs()) == []
    assert luck_of([]) != luck_of([])  # NaN


def test_luck_harms_where_the_advantage_divides_by_the_spread() -> None:
    rloo = {"advantage.kind": "rloo"}
    assert settings_of(Signs(luck=0.8, undivided=rloo)) == [rloo]
    assert settings_of(Signs(luck=0.8)) == []


def test_little_luck_is_no_sign() -> None:
    signs = Signs(luck=LUCK_SHARE - 0.01, undivided={"advantage.kind": "rloo"})
    assert settings_of(signs) == []


def test_steps_that_move_the_policy_far_are_a_sign_and_the_rate_that_is_not() -> None:
    """Movement goes with the square of the rate; the advice leaves half of the limit."""
    assert settings_of(Signs(shift=FAR - 0.01, lr=4e-3)) == []
    assert settings_of(Signs(shift=100 * FAR, lr=4e-3)) == [{"optim.lr": 2e-4}]


def test_a_bonus_that_nearly_outweighs_the_task_is_a_sign() -> None:
    assert settings_of(Signs(bonus=OUTWEIGHS - 0.01)) == []
    assert settings_of(Signs(bonus=OUTWEIGHS)) == [{"loss.entropy_coef": 0}]


def test_a_term_that_makes_much_of_the_rewards_differences_is_a_sign() -> None:
    def with_share(share: float) -> Signs:
        return Signs(terms=[Term(name="brief", weight="reward.shaping.1.weight", share=share)])

    assert settings_of(with_share(PAID - 0.01)) == []
    assert settings_of(with_share(PAID)) == [{"reward.shaping.1.weight": 0}]


@pytest.mark.parametrize(("lr", "usual"), [(0.3, 1e-3), (2e-3, 2e-4)])
def test_a_critic_whose_loss_grows_on_the_same_rollouts_is_a_sign(lr: float, usual: float) -> None:
    """A tenth of its rate, or what recipes have, whichever is lower."""
    assert settings_of(Signs(critic_growth=GROWN - 0.01, critic_lr=lr)) == []
    assert settings_of(Signs(critic_growth=GROWN, critic_lr=lr)) == [{"critic.lr": usual}]


def test_each_sentence_names_the_number_and_the_horizon() -> None:
    signs = Signs(
        luck=0.8,
        undivided={"advantage.kind": "rloo"},
        shift=1.0,
        lr=4e-3,
        bonus=0.3,
        terms=[Term(name="brief", weight="reward.shaping.0.weight", share=0.6)],
        critic_growth=650.0,
        critic_lr=0.3,
    )
    texts = [prospect.text for prospect in prospects(signs)]
    start = "The run is likely to collapse within 100 steps:"
    assert all(text.startswith(start) for text in texts)
    numbers = ("80 %", "1 nats", "30 %", "`brief` of the reward makes 60 %", "by 650")
    for number, text in zip(numbers, texts, strict=True):
        assert number in text
