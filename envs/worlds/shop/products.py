"""What a shop has: products, goals of customers, and a catalogue that can be searched.

The shop that ships has 360 products in 12 groups with 1,440 goals, made of words of our own, which
are data (`shop_words.jsonl`). Of products and goals nothing is stored: the same numbers of one
generator give the same catalogue in every process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from pydantic import TypeAdapter

from ..rows import read_rows, shipped
from ..search.bm25 import Bm25Index
from ..task_env import one_of, some_of

CATEGORY_MARK = "\u203a"
"""Between the parts of a category, as WebShop has it."""
MAX_RESULTS = 50
"""Products that a search finds at most, as in WebShop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """One product. `kind` is WebShop's `query`: what people search for who want such a product.

    `category` is a path (see `category_of`). `options` maps a name ("color") to its values.
    `price` is what is paid, in dollars; `price_text` is what the shop shows, a range at times.
    """

    asin: str
    title: str
    kind: str
    category: str
    price: float
    price_text: str
    attributes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    description: str = ""
    options: Mapping[str, tuple[str, ...]]

    @property
    def searched_text(self) -> str:
        """What a search looks at: title, description, the first feature and the options."""
        options = ", ".join(f"{name}: {', '.join(values)}" for name, values in self.options.items())
        return " ".join([self.title, self.description, *self.features[:1], options])


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What a customer wants: a product like `asin`, with attributes, options and a price limit.

    `text` is the instruction that the customer gives. `kind`, `title` and `category` are those of
    the product that the customer has in mind. `max_price` is None without a limit.
    """

    asin: str
    text: str
    kind: str
    title: str
    category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    max_price: float | None


class Catalogue:
    """Products with the goals of customers."""

    def __init__(self, products: Sequence[Product], goals: Sequence[Goal]) -> None:
        self.products = tuple(products)
        self.goals = tuple(goals)

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that a query finds, best first."""
        return tuple(
            self.products[document] for document, _ in self._index.best(query, MAX_RESULTS)
        )

    @cached_property
    def num_goals(self) -> int:
        return len(set(self.goals))

    @cached_property
    def _index(self) -> Bm25Index:
        return Bm25Index([product.searched_text for product in self.products])


def category_of(*parts: str) -> str:
    return f" {CATEGORY_MARK} ".join(parts)


PRICE_STEP = 10.0
MAX_LIMIT = 990.0


def price_limits(price: float) -> list[float]:
    """The limits that a goal may have: the four multiples of ten above the price, at most 990.

    >>> price_limits(24.5)
    [30.0, 40.0, 50.0, 60.0]
    """
    first = int(price // PRICE_STEP) + 1
    limits = [PRICE_STEP * n for n in range(first, first + 4)]
    return [limit for limit in limits if limit <= MAX_LIMIT]


def with_limit(text: str, limit: float | None) -> str:
    """An instruction with the price limit, in WebShop's words."""
    return text if limit is None else f"{text}, and price lower than {limit:.2f} dollars"


GOALS_PER_PRODUCT = 4
_SEED = 20260
_PER_KIND = 6
_OWN_ATTRIBUTES = 4
"""Attributes of a product, of the eight that its group knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductGroup:
    """Kinds of products that share attributes, options, materials and prices in dollars.

    Each attribute has the words in which a customer asks for it.
    """

    department: tuple[str, ...]
    kinds: tuple[str, ...]
    attributes: Mapping[str, str]
    materials: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    prices: tuple[int, int]


_WORDS = read_rows(shipped("shop_words.jsonl"), ())
GROUPS = TypeAdapter(tuple[ProductGroup, ...]).validate_python(_WORDS)
WISHES = {name: wish for group in GROUPS for name, wish in group.attributes.items()}
"""How a customer asks for an attribute: in words that neither a search nor a comparison finds."""
BRANDS: tuple[str, ...] = (
    "Alderbrook", "Brinlo", "Calmere", "Dovanti", "Elmstead", "Farrow Hill", "Glenmoss", "Havelin",
    "Isenberg", "Jorvik Lane", "Kestrelle", "Lumenor", "Maplewick", "Nordhafen", "Ostrava Works",
    "Pellerin", "Quillon", "Rowanmark", "Sundvale", "Tamsin", "Umberly", "Veldora", "Willowby",
    "Yarrowen",
)  # fmt: skip
_OPENINGS: tuple[str, ...] = (
    "I am looking for {article} {kind}: {wishes}",
    "I need {article} {kind}, {wishes}",
    "Find me {article} {kind} with these qualities: {wishes}",
    "Please buy {article} {kind} for me ({wishes})",
)


@lru_cache(maxsize=8)
def made_catalogue(num_products: int | None = None) -> Catalogue:
    """The catalogue, its products in a mixed order; the first `num_products` of it, or all."""
    rng = np.random.default_rng(_SEED)
    drafts = [(group, kind) for group in GROUPS for kind in group.kinds for _ in range(_PER_KIND)]
    products = []
    for number, rank in enumerate(rng.permutation(len(drafts))):
        group, kind = drafts[rank]
        products.append(_product(rng, f"P{number:03d}", group, kind))
    products = products[:num_products]
    goals = [_goal(rng, product) for product in products for _ in range(GOALS_PER_PRODUCT)]
    return Catalogue(products, goals)


def _product(rng: np.random.Generator, asin: str, group: ProductGroup, kind: str) -> Product:
    attributes = tuple(some_of(rng, tuple(group.attributes), _OWN_ATTRIBUTES))
    material = one_of(rng, group.materials)
    low, high = group.prices
    price = float(rng.integers(low, high + 1)) + one_of(rng, (0.0, 0.49, 0.95, 0.99))
    options = {name: _in_stock(rng, values) for name, values in group.options.items()}
    return Product(
        asin=asin,
        title=f"{one_of(rng, BRANDS)} {kind}, {attributes[0]}, {attributes[1]}, {material}",
        kind=kind,
        category=category_of(*group.department, kind),
        price=price,
        price_text=f"${price:.2f}",
        attributes=attributes,
        features=tuple(f"{attribute.capitalize()}." for attribute in attributes),
        description=f"{kind.capitalize()} of {material}: {', '.join(attributes)}.",
        options=options,
    )


def _goal(rng: np.random.Generator, product: Product) -> Goal:
    attributes = tuple(some_of(rng, product.attributes, int(rng.integers(1, 4))))
    chosen = {name: one_of(rng, values) for name, values in product.options.items()}
    limit = price_limits(product.price)[int(rng.integers(2))]
    wishes = [WISHES[attribute] for attribute in attributes]
    article = "an" if product.kind[0] in "aeiou" else "a"
    sentence = one_of(rng, _OPENINGS).format(
        article=article, kind=product.kind, wishes=_joined(wishes, "and")
    )
    of_group = next(group.options for group in GROUPS if product.kind in group.kinds)
    options = ", and ".join(
        f"{name}: {_choice_in_words(rng, value, of_group[name])}" for name, value in chosen.items()
    )
    return Goal(
        asin=product.asin,
        text=with_limit(f"{sentence}, with {options}", limit),
        kind=product.kind,
        title=product.title,
        category=product.category,
        attributes=attributes,
        options=tuple(chosen.values()),
        max_price=limit,
    )


def _choice_in_words(rng: np.random.Generator, option: str, values: tuple[str, ...]) -> str:
    """The wanted value, or as often all others: a value that is named may be the wrong one."""
    if rng.integers(2):
        return option
    return f"not {_joined([value for value in values if value != option], 'or')}"


def _joined(parts: Sequence[str], word: str) -> str:
    """`a, b and c`."""
    return f" {word} ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def _in_stock(rng: np.random.Generator, values: tuple[str, ...]) -> tuple[str, ...]:
    """All values of an option, or all but one."""
    missing = one_of(rng, values) if rng.integers(2) else ""
    return tuple(value for value in values if value != missing)
