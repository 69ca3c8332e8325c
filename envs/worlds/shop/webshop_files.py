"""Products and goals from WebShop's own files.

Three files of its release, of which any size will do:

    items_shuffle*.json    a list of products: asin, name, query, category, product_category,
                           full_description, small_description, pricing, customization_options
    items_ins_v2*.json     by asin: attributes, instruction, instruction_attributes
    items_human_ins.json   by asin: a list of instruction, instruction_attributes,
                           instruction_options

With the third file, its instructions are the goals, else those of the second one with every
combination of the product's options, as in WebShop (`web_agent_site/engine`, `load_products` and
`get_goals`). A row that is no product, or no goal, is left out. WebShop draws price limits, and
prices from a range, without a seed; here they are a function of the product and the instruction.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...base import EnvUnavailableError
from ..rows import Row, cached_by_files, read_mapping, read_rows
from .products import Catalogue, Goal, Product, price_limits, with_limit

DEFAULT_PRICE = 100.0
"""Of a product without a price."""
MAX_ASIN_CHARS = 10
MAX_TEXT_CHARS = 4_000
MAX_NAME_CHARS = 300
MAX_OPTIONS, MAX_VALUES = 20, 200
"""Options of a product, and values of an option, that are read."""
MAX_COMBINATIONS = 200
"""Goals from the combinations of one product's options."""
_AMOUNT = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


@cached_by_files(4)
def read_catalogue(
    products: str, attributes: str, human_goals: str | None, num_products: int | None
) -> Catalogue:
    """The first products of the files, with the goals that are about them.

    Raises:
        EnvUnavailableError: a file cannot be read, or there is no product, or no goal.
    """
    rows = read_rows(products, (), most=num_products)
    notes = read_mapping(attributes)
    of_asin: dict[str, Product] = {}
    for row in rows:
        product = _product(row, notes)
        if product is not None:
            of_asin.setdefault(product.asin, product)
    if not of_asin:
        raise EnvUnavailableError(
            f"{products} holds no product with asin and name, as WebShop's items_shuffle.json does"
        )
    instructions = notes if human_goals is None else read_mapping(human_goals)
    goals = [
        goal
        for product in of_asin.values()
        for goal in _goals(product, instructions.get(product.asin))
    ]
    if not goals:
        raise EnvUnavailableError(
            f"{human_goals or attributes} holds no instruction with instruction_attributes for a "
            f"product of {products}"
        )
    return Catalogue(list(of_asin.values()), goals)


def _product(row: Row, known_options: Mapping[str, Any]) -> Product | None:
    asin, title = row.get("asin"), _text(row.get("name"), MAX_NAME_CHARS)
    if not isinstance(asin, str) or not asin.isalnum() or not asin.isascii() or not title:
        return None
    if asin == "nan" or len(asin) > MAX_ASIN_CHARS:
        return None
    small = row.get("small_description")
    notes = known_options.get(asin)
    price, price_text = _price(asin, row.get("pricing"))
    return Product(
        asin=asin,
        title=title,
        kind=_text(row.get("query"), MAX_NAME_CHARS).casefold(),
        category=_text(row.get("product_category"), MAX_NAME_CHARS),
        price=price,
        price_text=price_text,
        attributes=_texts(notes.get("attributes")) if isinstance(notes, dict) else (),
        features=_texts(small if isinstance(small, list) else [small], MAX_TEXT_CHARS),
        description=_text(row.get("full_description"), MAX_TEXT_CHARS),
        options=_options(row.get("customization_options")),
    )


def _goals(product: Product, instructions: Any) -> Iterator[Goal]:
    """The goals that a file has for a product: a list of them by people, or one object."""
    if isinstance(instructions, list):
        for row in instructions:
            if isinstance(row, dict):
                yield from _goal(product, row, _texts(row.get("instruction_options")), "")
    elif isinstance(instructions, dict):
        names = sorted(product.options)
        ways = itertools.product(*(product.options[name] for name in names))
        for values in itertools.islice(ways, MAX_COMBINATIONS):
            named = [f"{name}: {value}" for name, value in zip(names, values, strict=True)]
            wish = f" with {', and '.join(named)}" if named else ""
            yield from _goal(product, instructions, values, wish)


def _goal(product: Product, row: Row, options: Sequence[str], wish: str) -> Iterator[Goal]:
    text = _text(row.get("instruction"), MAX_TEXT_CHARS).strip(".")
    attributes = _texts(row.get("instruction_attributes"))
    if not text or not attributes:
        return
    limits = price_limits(product.price)
    limit = None
    if len(limits) >= 2:
        # The larger of two different limits, as if both were drawn.
        pairs = list(itertools.combinations(limits, 2))
        limit = pairs[int(_share(product.asin, text, wish) * len(pairs))][1]
    yield Goal(
        asin=product.asin,
        text=with_limit(f"{text}{wish}", limit),
        kind=product.kind,
        title=product.title,
        category=product.category,
        attributes=attributes,
        options=tuple(option.casefold() for option in options),
        max_price=limit,
    )


def _price(asin: str, pricing: Any) -> tuple[float, str]:
    """What is paid, and what is shown: "$12.5", or "$10.0 to $20.0" with a price in between."""
    parts = pricing.split("$")[1:3] if isinstance(pricing, str) else []
    matches = [_AMOUNT.search(part[:40]) for part in parts]
    amounts = [float(match[0].replace(",", "")) for match in matches if match]
    amounts = [amount for amount in amounts if math.isfinite(amount) and amount < 1e9]
    if not amounts:
        return DEFAULT_PRICE, f"${DEFAULT_PRICE}"
    if len(amounts) == 1:
        return amounts[0], f"${amounts[0]}"
    low, high = sorted(amounts)
    return round(low + _share(asin) * (high - low), 2), f"${low} to ${high}"


def _options(content: Any) -> dict[str, tuple[str, ...]]:
    """`{"Color": [{"value": "Red/Blue"}]}` -> `{"color": ("red | blue",)}`."""
    options: dict[str, tuple[str, ...]] = {}
    named = content.items() if isinstance(content, dict) else ()
    for name, rows in itertools.islice(named, MAX_OPTIONS):
        values = [
            _text(row.get("value"), MAX_NAME_CHARS).replace("/", " | ").casefold()
            for row in (rows[:MAX_VALUES] if isinstance(rows, list) else ())
            if isinstance(row, dict)
        ]
        kept = tuple(dict.fromkeys(value for value in values if value))
        if kept:
            options[_text(name, MAX_NAME_CHARS).casefold()] = kept
    return options


def _texts(values: Any, limit: int = MAX_NAME_CHARS) -> tuple[str, ...]:
    texts = [_text(value, limit) for value in (values if isinstance(values, list) else ())]
    return tuple(text for text in texts if text)


def _text(value: Any, limit: int) -> str:
    """Text on one line that can be shown and stored; "" for anything else."""
    if not isinstance(value, str):
        return ""
    text = value[: 2 * limit].encode("utf-8", "replace").decode("utf-8")
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:limit]


def _share(*parts: str) -> float:
    """A number in [0, 1) that is a function of texts."""
    digest = hashlib.blake2b("\x00".join(parts).encode("utf-8"), digest_size=6).digest()
    return int.from_bytes(digest, "big") / 2**48
