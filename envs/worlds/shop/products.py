"""What a shop has: products, goals of customers, and a catalogue that can be searched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ..search.bm25 import Bm25Index

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
        self._of_asin = {product.asin.casefold(): product for product in self.products}

    def product(self, asin: str) -> Product | None:
        """The product of this number, in any letter case."""
        return self._of_asin.get(asin.strip().casefold())

    def search(self, query: str) -> tuple[Product, ...]:
        """The products that a query finds, best first."""
        return tuple(
            self.products[document] for document, _ in self._index.best(query, MAX_RESULTS)
        )

    @cached_property
    def num_goals(self) -> int:
        """How many different goals there are."""
        return len(set(self.goals))

    @cached_property
    def _index(self) -> Bm25Index:
        return Bm25Index([product.searched_text for product in self.products])


def category_of(*parts: str) -> str:
    """The path of a category."""
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
