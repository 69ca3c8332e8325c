"""The same shop by tool calls."""

from __future__ import annotations

import pytest

from echoscope.envs.base import Message
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.worlds.shop.shop_tools import ShopTools


def started() -> ShopTools:
    world = ShopTools()
    world.reset(3, 0)
    return world


@pytest.mark.long
def test_it_keeps_the_contract() -> None:
    report = check_env("shop_tools")
    assert report.failed == {}
    assert {"tools", "expert"} <= set(report.passed)


def test_an_episode_by_hand() -> None:
    world = started()
    results = world.step('search {"query": "cardigan, side pockets"}')
    assert '16 results for "cardigan, side pockets", page 1 of 2' in results.observation.text
    product = world.step('click {"item": "P292"}')
    assert product.observation.messages == (
        Message(role="tool", name="click", content=product.observation.text),
    )
    world.step('click {"item": "BLACK"}')
    assert "Chosen: color: black, size: s" in world.step('click {"item": "s"}').observation.text
    bought = world.step('click {"item": "buy now"}')
    assert (bought.reward, bought.terminated, bought.success) == (1.0, True, True)
    assert not world.step('click {"item": "buy now"}').is_valid


def test_an_answer_leaves_the_shop_without_a_purchase() -> None:
    world = started()
    result = world.step("answer P292")
    assert (result.reward, result.terminated, result.success) == (0.0, True, False)
    assert (world.solve(), result.observation.text) == (None, "Nothing was bought.")


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ('click {"item": "buy now"}', 'Invalid action "click[buy now]".'),
        ('search {"query": ""}', "do not fit at query"),
        ('search {"query": "lamp", "sort": "price"}', "Additional properties are not allowed"),
    ],
)
def test_calls_that_lead_nowhere_are_answered_in_words(action: str, sentence: str) -> None:
    result = started().step(action)
    assert sentence in result.observation.text
    assert (result.is_valid, result.reward, result.terminated) == (False, 0.0, False)
