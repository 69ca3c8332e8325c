"""The text shop: pages, clicks, the purchase, and players who do anything."""

from __future__ import annotations

import json
import re

import pytest
from costs import processor_seconds

from echoscope.envs.base import EnvParamsError, StepResult
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.registry import make
from echoscope.envs.worlds.search.bm25 import words_of
from echoscope.envs.worlds.shop.products import GROUPS, WISHES, made_catalogue
from echoscope.envs.worlds.shop.webshop import WebShop, WebShopConfig

SEED = 3
"""A cardigan with a soft lining, black, s, below 80 dollars."""


def opened(*actions: str, **params: object) -> tuple[WebShop, StepResult]:
    world = WebShop(WebShopConfig(**params))
    world.reset(SEED, 0)
    results = [world.step(action) for action in actions]
    return world, results[-1]


@pytest.mark.long
def test_it_keeps_the_contract() -> None:
    report = check_env("webshop", {"page_size": 2, "num_products": 30})
    assert report.failed == {}
    assert "expert" in report.passed


def test_an_episode_by_hand() -> None:
    world = WebShop(WebShopConfig())
    first = world.reset(SEED, 0)
    assert first.text == (
        "Instruction: Find me a cardigan with these qualities: the inside does not itch, with "
        "color: black, and size: not m, l or xl, and price lower than 80.00 dollars\n"
        "Actions: search[keywords]"
    )
    results = world.step("search[Cardigan, side pockets]").observation.text.splitlines()
    assert results[1] == '16 results for "cardigan, side pockets", page 1 of 2'
    assert results[2] == "P292: Nordhafen cardigan, side pockets, relaxed fit, cotton, $76.99"
    assert results[-1].startswith("Actions: click[back to search], click[next >], click[p292], ")
    product = world.step("click[P292]").observation.text.splitlines()
    assert product[2:5] == ["color: red, black", "size: s, m, xl", "Chosen: nothing"]
    world.step("click[black]")
    chosen = world.step(" CLICK[S] ")
    assert chosen.observation.text.splitlines()[4] == "Chosen: color: black, size: s"
    bought = world.step("click[buy now]")
    assert (bought.reward, bought.terminated, bought.success) == (1.0, True, True)
    assert bought.info == {
        "score": 1.0,
        "type_factor": 1.0,
        "matched_attributes": 1.0,
        "matched_options": 2.0,
        "is_affordable": 1.0,
        "is_target": 1.0,
    }


def test_an_incomplete_purchase_earns_its_score_and_is_no_success() -> None:
    search = "search[cardigan, side pockets]"
    world, bought = opened(search, "click[p292]", "click[red]", "click[s]", "click[buy now]")
    # One attribute, one of two options and the price: 3 of 4.
    assert (bought.reward, bought.terminated, bought.success) == (0.75, True, False)
    assert world.solve() is None


def test_pages_lead_forth_and_back() -> None:
    world, result = opened("search[cardigan, side pockets]", page_size=4)
    assert "click[< prev]" not in world.legal_actions()
    for page in (2, 3, 4):
        result = world.step("click[next >]")
        assert f"page {page} of 4" in result.observation.text
    assert "click[next >]" not in world.legal_actions()
    assert not world.step("click[next >]").is_valid
    assert "page 3 of 4" in world.step("click[< prev]").observation.text
    product = world.legal_actions()[-1]
    opened_page = world.step(product).observation.text
    assert "Chosen: nothing" in opened_page
    section = world.step("click[features]")
    assert world.legal_actions() == ("click[back to search]", "click[< prev]")
    assert section.observation.text != opened_page
    assert world.step("click[< prev]").observation.text == opened_page
    assert "page 3 of 4" in world.step("click[< prev]").observation.text
    assert world.step("click[back to search]").observation.text.endswith("search[keywords]")


@pytest.mark.parametrize(
    "action",
    [
        "", "click[]", "search[]", "search[ ]", "click[buy now]", "click[p292]", "buy now",
        "search cardigan", "click[search]", "search[a]]x", "click[__class__]", "click[\x00]",
    ],
)  # fmt: skip
def test_what_the_page_does_not_offer_is_refused(action: str) -> None:
    world, result = opened(action)
    assert (result.is_valid, result.is_effective, result.reward) == (False, False, 0.0)
    assert result.observation.text.startswith(world.invalid_notice(action))
    assert result.observation.text.endswith("Actions: search[keywords]")


@pytest.mark.parametrize(
    "query", ["zebra", "\ud800 lamp", "[[[]", "'; DROP TABLE", "x" * 1_000_000]
)
def test_any_query_is_answered_soon(query: str) -> None:
    with processor_seconds(2.0):
        _, result = opened(f"search[{query}]")
    assert result.is_valid
    assert len(result.observation.text) < 1500
    result.observation.text.encode("utf-8")
    json.loads(result.observation.frame or "").get("lines")


def test_wishes_are_told_in_words_that_no_search_finds() -> None:
    texts = [text for group in GROUPS for text in (*group.kinds, *group.materials)]
    texts += [value for group in GROUPS for values in group.options.values() for value in values]
    listed = {*words_of(" ".join(texts))} - {"of", "can"}
    assert WISHES.keys() == {name for group in GROUPS for name in group.attributes}
    for attribute, wish in WISHES.items():
        assert not {*words_of(wish)} & (listed | {*words_of(attribute)})


def test_the_options_told_leave_one_choice() -> None:
    product_of = {product.asin: product for product in made_catalogue().products}
    for goal in made_catalogue().goals:
        product = product_of[goal.asin]
        for (name, stock), option in zip(product.options.items(), goal.options, strict=True):
            told = re.search(rf"{name}: (not )?(.*?)(?:, and|$)", goal.text)
            assert told is not None
            named = set(re.split(r", | or ", told[2]))
            assert option in stock
            assert {option} == ({*stock} - named if told[1] else named)


def test_nothing_is_sold_after_the_purchase() -> None:
    world, _ = opened("search[cardigan]", "click[back to search]", "search[cardigan]")
    world.step(world.legal_actions()[-1])
    assert world.step("click[buy now]").terminated
    for action in ("click[buy now]", "search[cardigan]", "click[< prev]"):
        result = world.step(action)
        assert (result.is_valid, result.reward, result.terminated) == (False, 0.0, True)


def test_the_expert_finds_its_way_back_from_anywhere() -> None:
    world = WebShop(WebShopConfig(page_size=3))
    for seed in range(20):
        world.reset(seed, 0)
        state = seed
        for _ in range(6):
            actions = [a for a in world.guesses() if a != "click[buy now]"]
            state = (state * 31 + 7) % 1009
            world.step(actions[state % len(actions)])
        rewards = [world.step(action).reward for action in world.solve() or []]
        assert rewards[-1] == 1.0


def test_training_and_evaluation_can_be_kept_apart() -> None:
    world = WebShop(WebShopConfig())
    assert world.num_tasks == 1440
    keys = set()
    for seed in range(300):
        world.reset(seed, 0)
        keys.add(world.task_key())
    assert 250 < len(keys) <= 300


@pytest.mark.parametrize(
    ("params", "sentence"),
    [
        ({"products": "a.json"}, "products and attributes go together"),
        ({"human_goals": "a.json"}, "human_goals needs products and attributes"),
        ({"num_products": 0}, "num_products is 0, but must be at least 1"),
        ({"page_size": 51}, r"page_size is 51, but must be at least 1 and at most 50"),
    ],
)
def test_impossible_parameters_are_refused(params: dict[str, object], sentence: str) -> None:
    with pytest.raises(EnvParamsError, match=sentence):
        make("webshop", **params)
