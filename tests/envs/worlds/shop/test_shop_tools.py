"""The same shop by tool calls."""

from __future__ import annotations

import pytest

from echoscope.envs.base import Message
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.worlds.shop.shop_tools import ShopTools, ShopToolsConfig


def started() -> ShopTools:
    world = ShopTools(ShopToolsConfig())
    world.reset(3, 0)
    return world


def test_it_keeps_the_contract() -> None:
    report = check_env("shop_tools")
    assert report.failed == {}
    assert {"tools", "expert"} <= set(report.passed)


def test_an_episode_by_hand() -> None:
    world = started()
    found = world.step('search {"query": "cardigan, side pockets"}')
    assert found.observation.text.startswith('16 results for "cardigan, side pockets", page 1 of 4')
    page = world.step('search {"page": 4, "query": "cardigan, side pockets"}')
    assert "page 4 of 4" in page.observation.text
    product = world.step('open {"product": "p292"}')
    assert product.observation.messages == (
        Message(role="tool", name="open", content=product.observation.text),
    )
    assert "Features: Side pockets." in product.observation.text
    world.step('choose {"option": "Color", "value": "BLACK"}')
    chosen = world.step('choose {"option": "size", "value": "s"}')
    assert chosen.observation.text == "Chosen: color: black, size: s."
    bought = world.step("buy {}")
    assert (bought.reward, bought.terminated, bought.success) == (1.0, True, True)
    assert not world.step("buy {}").is_valid


def test_an_answer_leaves_the_shop_without_a_purchase() -> None:
    world = started()
    result = world.step("answer P292")
    assert (result.reward, result.terminated, result.success) == (0.0, True, False)
    assert (world.solve(), result.observation.text) == (None, "Nothing was bought.")


@pytest.mark.parametrize(
    ("action", "words"),
    [
        ("buy {}", "Open a product first."),
        ('choose {"option": "color", "value": "red"}', "Open a product first."),
        ('open {"product": "P999"}', "There is no such product."),
        ('search {"query": " "}', "Search for at least one word."),
        ('search {"query": "cardigan", "page": 99}', "There is no page 99, only 2."),
        ('search {"query": "cardigan", "page": 0}', "do not fit at page"),
        (f'search {{"query": "cardigan", "page": 1{"0" * 300}}}', "There is no page 1000000"),
        ('search {"query": "lamp", "sort": "price"}', "Additional properties are not allowed"),
    ],
)
def test_calls_that_lead_nowhere_are_answered_in_words(action: str, words: str) -> None:
    result = started().step(action)
    assert words in result.observation.text
    assert (result.reward, result.terminated) == (0.0, False)
