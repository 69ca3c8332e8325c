"""WebShop's score of a purchase, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from echoscope.envs.worlds.shop.products import (
    GROUPS,
    Goal,
    Product,
    category_of,
    made_catalogue,
    price_limits,
)
from echoscope.envs.worlds.shop.scoring import (
    has_attribute,
    is_alike,
    is_same_option,
    score_purchase,
    title_share,
    type_factor,
)

LAMP = Product(
    asin="P1",
    title="Alder desk lamp, oak",
    kind="desk lamp",
    category=category_of("Home", "Lighting", "desk lamp"),
    price=30.0,
    price_text="$30.00",
    attributes=("energy saving", "cordless"),
    features=("Bright and dimmable.",),
    description="Its cable is long.",
    options={"color": ("white", "navy blue"), "size": ("s", "xl")},
)
GOAL = Goal(
    asin="P1",
    text="a lamp",
    kind="desk lamp",
    title=LAMP.title,
    category=LAMP.category,
    attributes=("saving energy", "dimmable", "flicker free"),
    options=("blue", "xl"),
    max_price=30.0,
)


def test_the_score_is_the_share_of_what_was_wanted() -> None:
    """Two of three attributes (one by the order of words, one in a feature), both options, and the
    price: 5 of 6."""
    score = score_purchase(LAMP, GOAL, {"color": "navy blue", "size": "xl"})
    assert (score.matched_attributes, score.matched_options) == (2, 2)
    assert (score.is_affordable, score.type_factor) == (True, 1.0)
    assert score.total == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("chosen", "price", "total"),
    [
        ({}, 30.0, 3 / 6),
        ({"color": "white"}, 30.0, 3 / 6),
        ({"color": "navy blue"}, 30.0, 4 / 6),
        ({"color": "navy blue", "size": "s"}, 30.01, 3 / 6),
        ({"size": "xl"}, 1e6, 3 / 6),
    ],
)
def test_what_is_missing_lowers_it(chosen: dict[str, str], price: float, total: float) -> None:
    lamp = replace(LAMP, price=price)
    assert score_purchase(lamp, GOAL, chosen).total == pytest.approx(total)


def test_no_limit_is_always_kept() -> None:
    goal = replace(GOAL, max_price=None, options=(), attributes=("cordless",))
    assert score_purchase(replace(LAMP, price=1e9), goal, {}).total == 1.0


@pytest.mark.parametrize(
    ("title", "kind", "category", "factor"),
    [
        # One of the four words of the wanted title agrees: more than a fifth.
        ("Elm lamp", "floor lamp", "Garden", 1.0),
        # No word agrees: nothing counts any more, not even the same kind.
        ("Elm light", "desk lamp", LAMP.category, 0.0),
    ],
)
def test_the_factor_of_the_type(title: str, kind: str, category: str, factor: float) -> None:
    bought = replace(LAMP, title=title, kind=kind, category=category)
    assert type_factor(bought, GOAL) == factor
    score = score_purchase(bought, GOAL, {"color": "navy blue", "size": "xl"})
    assert score.total == pytest.approx(factor * 5 / 6)


@pytest.mark.parametrize(
    ("share", "kind", "category", "factor"),
    [
        (2, "other", "x", 0.5),  # 2 of 10 words is no more than a fifth
        (2, "wanted", "x", 1.0),
        (2, "other", category_of("b", "a"), 1.0),
        (2, "other", category_of("a", "c"), 0.5),
        (3, "other", "x", 1.0),
        (1, "other", "x", 0.5),
    ],
)
def test_few_common_words_need_the_kind_or_two_parts_of_the_category(
    share: int, kind: str, category: str, factor: float
) -> None:
    title_words = "ash bay cup dew elm fig gem hay ivy jar".split()  # noqa: SIM905
    goal = replace(GOAL, title=" ".join(title_words), kind="wanted", category=category_of("a", "b"))
    bought = replace(LAMP, title=" ".join(title_words[:share]), kind=kind, category=category)
    assert type_factor(bought, goal) == factor


def test_less_than_a_tenth_of_the_words_counts_a_tenth() -> None:
    title_words = [f"word{'x' * n}" for n in range(11)]
    goal = replace(GOAL, title=" ".join(title_words))
    assert type_factor(replace(LAMP, title=title_words[0]), goal) == 0.1


def test_titles_are_compared_without_numbers_and_stop_words() -> None:
    assert title_share("The lamp of 12", "A lamp for 30") == 1.0
    assert title_share("lamp", "12 of 30") == 0.2  # WebShop's value where no word is left


@pytest.mark.parametrize(
    ("value", "option", "is_same"),
    [
        ("navy blue", "blue", True),
        ("dark red", "light red", True),
        ("standard", "tan", False),  # WebShop finds the colour tan in standard
        ("xl", "l", False),
        ("9.5", "9", True),  # a defect of the token set ratio that WebShop has too
        ("pack of 12", "12 pack", True),
    ],
)
def test_options(value: str, option: str, is_same: bool) -> None:
    assert is_same_option(value, option) is is_same


def test_attributes_are_found_in_the_texts_as_well() -> None:
    assert has_attribute(LAMP, "bright and dimmable")
    assert has_attribute(LAMP, "cable is")
    assert not has_attribute(LAMP, "touch control")


def test_price_limits_are_the_next_four_tens() -> None:
    assert price_limits(30.0) == [40.0, 50.0, 60.0, 70.0]
    assert price_limits(965.0) == [970.0, 980.0, 990.0]
    assert price_limits(2000.0) == []


def test_nothing_in_the_shipped_catalogue_is_mistaken_for_something_else() -> None:
    for group in GROUPS:
        values = [value for values in group.options.values() for value in values]
        for names, is_same in ((values, is_same_option), ([*group.attributes], is_alike)):
            assert len({*names}) == len(names)
            pairs = [(a, b) for i, a in enumerate(names) for b in names[i + 1 :]]
            assert [pair for pair in pairs if is_same(*pair)] == []


def test_every_shipped_goal_is_met_by_the_product_that_it_was_made_of() -> None:
    shop = made_catalogue()
    assert (len(shop.products), shop.num_goals) == (360, 1440)
    product_of = {product.asin: product for product in shop.products}
    for goal in shop.goals:
        product = product_of[goal.asin]
        chosen = dict(zip(product.options, goal.options, strict=True))
        assert score_purchase(product, goal, chosen).total == 1.0
