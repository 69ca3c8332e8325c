"""WebShop's own files: what is read, and what broken and hostile ones give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from costs import processor_seconds

from echoscope.envs.base import EnvUnavailableError
from echoscope.envs.checks.check_env import check_env
from echoscope.envs.registry import make
from echoscope.envs.worlds.shop.products import category_of
from echoscope.envs.worlds.shop.webshop_files import read_catalogue

PRODUCTS: list[Any] = [
    {
        "asin": "B0TEST0001",
        "name": "Alder desk lamp",
        "query": " Desk Lamp ",
        "category": "home",
        "product_category": category_of("Home", "Lighting"),
        "full_description": "A lamp.\nIt is\tbright.",
        "small_description": ["Dimmable light", "Oak"],
        "pricing": "$1,010.50",
        "images": [""],
        "customization_options": {
            "Color": [{"value": " Red/Blue ", "image": None}, {"value": "White"}],
            "Size": None,
        },
    },
    {
        "asin": "B0TEST0002",
        "name": "Elm floor lamp",
        "query": "floor lamp",
        "product_category": category_of("Home", "Lighting"),
        "full_description": None,
        "small_description": "One feature",
        "pricing": "$20.00 - $30.00",
        "customization_options": "",
    },
]
ATTRIBUTES: dict[str, Any] = {
    "B0TEST0001": {
        "attributes": ["dimmable"],
        "instruction": "Find me a dimmable desk lamp",
        "instruction_attributes": ["dimmable"],
    },
    "B0TEST0002": {"attributes": ["tall"]},
}
HUMAN: dict[str, Any] = {
    "B0TEST0002": [
        {
            "asin": "B0TEST0002",
            "instruction": "i want a tall lamp.",
            "instruction_attributes": ["tall"],
            "instruction_options": [],
            "options": [],
            "worker_id": "w",
            "assignment_id": "a",
        },
        {"instruction": "skipped", "instruction_attributes": []},
    ]
}


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    contents = {"products": PRODUCTS, "attributes": ATTRIBUTES, "human_goals": HUMAN}
    for name, content in contents.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return {name: str(tmp_path / f"{name}.json") for name in contents}


def test_products_are_read_as_webshop_reads_them(files: dict[str, str]) -> None:
    shop = read_catalogue(files["products"], files["attributes"], None, None)
    lamp, floor_lamp = shop.products
    assert (lamp.kind, lamp.price, lamp.price_text) == ("desk lamp", 1010.5, "$1010.5")
    assert lamp.options == {"color": ("red | blue", "white")}
    assert lamp.description == "A lamp. It is bright."
    assert (lamp.attributes, lamp.features) == (("dimmable",), ("Dimmable light", "Oak"))
    assert 20 <= floor_lamp.price <= 30
    assert floor_lamp.price_text == "$20.0 to $30.0"
    assert (floor_lamp.options, floor_lamp.features) == ({}, ("One feature",))


def test_goals_without_people_take_every_combination_of_options(files: dict[str, str]) -> None:
    shop = read_catalogue(files["products"], files["attributes"], None, None)
    assert [(goal.text, goal.options, goal.max_price) for goal in shop.goals] == [
        ("Find me a dimmable desk lamp with color: red | blue", ("red | blue",), None),
        ("Find me a dimmable desk lamp with color: white", ("white",), None),
    ]


def test_goals_of_people_have_their_own_words_and_a_price_limit(files: dict[str, str]) -> None:
    shop = read_catalogue(files["products"], files["attributes"], files["human_goals"], None)
    (goal,) = shop.goals
    assert goal.max_price in (40.0, 50.0, 60.0)
    assert goal.text == f"i want a tall lamp, and price lower than {goal.max_price:.2f} dollars"


@pytest.mark.long
def test_a_shop_of_such_files_keeps_the_contract(files: dict[str, str]) -> None:
    report = check_env("webshop", files)
    assert report.failed == {}
    assert "expert" in report.passed
    world = make("webshop", products=files["products"], attributes=files["attributes"])
    assert world.num_tasks == 2


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("products", json.dumps(PRODUCTS)[:300], "products.json is not JSON"),
        ("products", "[" * 100_000, "products.json is not JSON"),
        ("products", "{}", "must hold a list of objects"),
        ("products", "[1]", "row 1 is not an object"),
        ("products", "[]", "holds no rows"),
        ("products", '[{"asin": 1, "name": "x"}, {}]', "holds no product with asin and name"),
        ("products", '[{"asin": "../../etc", "name": "x"}]', "holds no product with asin"),
        ("attributes", "[]", "attributes.json must hold one object"),
        ("attributes", "", "attributes.json is not JSON"),
        ("human_goals", "{}", "human_goals.json holds no instruction"),
        ("human_goals", '{"B0TEST0002": {"instruction": 1}}', "holds no instruction"),
        ("human_goals", '{"B0TEST0002": [1, {"instruction": []}]}', "holds no instruction"),
    ],
)
def test_a_broken_file_gives_one_sentence(
    files: dict[str, str], name: str, content: str, sentence: str
) -> None:
    Path(files[name]).write_text(content)
    with pytest.raises(EnvUnavailableError, match=sentence) as refusal:
        make("webshop", **files)
    assert "\n" not in str(refusal.value)


def test_a_file_that_is_not_there(files: dict[str, str]) -> None:
    with pytest.raises(EnvUnavailableError, match=r"cannot read none.json: No such file"):
        make("webshop", **{**files, "attributes": "none.json"})


@pytest.mark.parametrize(
    "change",
    [
        {"pricing": "$1e999"},
        {"pricing": "$" + "9" * 5000},
        {"pricing": "$.$,$-1"},
        {"pricing": 7},
        {"name": "\ud800\x00\u202elamp" + "x" * 100_000},
        {"customization_options": {"a": [1, {"value": 2}, {"value": "\x00"}], "\ud800": [{}]}},
        {"customization_options": {"buy": [{"value": "Buy Now"}], "b": [{"value": "buy now"}]}},
        {"customization_options": {f"o{n}": [{"value": f"v{n}"}] for n in range(30)}},
        {"small_description": {"a": 1}, "full_description": ["x"]},
        {"product_category": None, "query": None},
    ],
)
def test_odd_values_of_a_product_do_no_harm(files: dict[str, str], change: dict[str, Any]) -> None:
    Path(files["products"]).write_text(json.dumps([{**PRODUCTS[0], **change}]))
    world = make("webshop", products=files["products"], attributes=files["attributes"])
    texts = [world.reset(0, 0).text]
    for action in world.solve() or ["search[lamp]"]:
        texts.append(world.step(action).observation.text)
    for text in texts:
        text.encode("utf-8")
        assert len(text) < 5000


def test_an_option_that_reads_like_a_button_is_clicked_by_its_name(files: dict[str, str]) -> None:
    options = {
        "style": [{"value": "Buy Now"}],
        "Color": [{"value": "red"}],
        "lid": [{"value": "red"}],
    }
    Path(files["products"]).write_text(
        json.dumps([{**PRODUCTS[0], "customization_options": options}])
    )
    world = make("webshop", products=files["products"], attributes=files["attributes"])
    world.reset(0, 0)
    world.step("search[lamp]")
    world.step("click[b0test0001]")
    assert world.legal_actions()[2:5] == (
        "click[style: buy now]",
        "click[color: red]",
        "click[lid: red]",
    )
    assert not world.step("click[style: buy now]").terminated
    assert [world.step(action).reward for action in world.solve() or []][-1] == 1.0


def test_a_product_with_very_many_options_is_shown_soon(files: dict[str, str]) -> None:
    values = [{"value": f"value {n}"} for n in range(1_000)]
    options = {f"option {n}": values for n in range(50)}
    Path(files["products"]).write_text(
        json.dumps([{**PRODUCTS[0], "customization_options": options}])
    )
    world = make("webshop", products=files["products"], attributes=files["attributes"])
    world.reset(0, 0)
    world.step("search[lamp]")
    with processor_seconds(2.0):
        assert world.step("click[b0test0001]").is_valid
    assert len(world.legal_actions()) == 2 + 20 * 200 + 3


def test_prices_and_limits_do_not_depend_on_the_process(files: dict[str, str]) -> None:
    shop = read_catalogue(files["products"], files["attributes"], files["human_goals"], None)
    assert (shop.products[1].price, shop.goals[0].max_price) == (22.65, 50.0)
