"""One customer's way through the shop: what page is open, what is chosen, what was bought.

`webshop` and `shop_tools` are two ways to act on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ..search.bm25 import MAX_QUERY_CHARS
from .products import Catalogue, Goal, Product
from .scoring import Score, has_attribute, is_same_option, score_purchase, type_factor

Place = Literal["search", "results", "product", "section", "done"]
Section = Literal["description", "features", "attributes"]


class Visit:
    """The state of one visit. Every method that acts says whether it could."""

    def __init__(self, catalogue: Catalogue, goal: Goal, page_size: int) -> None:
        self.catalogue = catalogue
        self.goal = goal
        self.page_size = page_size
        self.place: Place = "search"
        self.query = ""
        self.results: tuple[Product, ...] = ()
        self.page = 1
        self.product: Product | None = None
        self.section: Section = "description"
        self.chosen: dict[str, str] = {}
        self.score: Score | None = None

    def search(self, query: str) -> bool:
        """Open the first page of what a query finds."""
        if self.is_over or not query.strip():
            return False
        self.query, self.page, self.place = query[:MAX_QUERY_CHARS], 1, "results"
        self.results = self.catalogue.search(query)
        self._leave_product()
        return True

    def turn_to(self, page: int) -> bool:
        """Open another page of the results."""
        if self.is_over or not self.results or not 1 <= page <= self.num_pages:
            return False
        self.page, self.place = page, "results"
        self._leave_product()
        return True

    def open(self, product: Product) -> bool:
        """Open a product's page; nothing is chosen yet."""
        if self.is_over:
            return False
        self._leave_product()
        self.product, self.place = product, "product"
        return True

    def choose(self, name: str, value: str) -> bool:
        """Choose an option of the open product, instead of an earlier choice of the same name."""
        if self.is_over or self.product is None:
            return False
        if value not in self.product.options.get(name, ()):
            return False
        self.chosen[name] = value
        self.place = "product"
        return True

    def read(self, section: Section) -> bool:
        """Open a section of the open product."""
        if self.is_over or self.product is None:
            return False
        self.section, self.place = section, "section"
        return True

    def back(self) -> bool:
        """From a section to its product, and from a product to the results."""
        if self.place == "section":
            self.place = "product"
        elif self.place == "product":
            self.place = "results"
            self._leave_product()
        else:
            return False
        return True

    def leave(self) -> bool:
        """Back to the page with the search box."""
        if self.is_over:
            return False
        self.place, self.results, self.query, self.page = "search", (), "", 1
        self._leave_product()
        return True

    def buy(self) -> bool:
        """Buy the open product with what is chosen; this ends the visit."""
        if self.is_over or self.product is None:
            return False
        self.score = score_purchase(self.product, self.goal, self.chosen)
        self.place = "done"
        return True

    def give_up(self) -> None:
        """End the visit without a purchase."""
        self.place = "done"

    @property
    def is_over(self) -> bool:
        """Whether something was bought, or the customer gave up."""
        return self.place == "done"

    @property
    def is_solved(self) -> bool:
        """Whether what was bought is all that was wanted: a score of 1."""
        return self.score is not None and self.score.total >= 1.0

    @property
    def num_pages(self) -> int:
        """Pages of the results; 1 for none."""
        return max(1, -(-len(self.results) // self.page_size))

    @property
    def shown(self) -> tuple[Product, ...]:
        """The products on the open page of the results."""
        first = (self.page - 1) * self.page_size
        return self.results[first : first + self.page_size]

    def _leave_product(self) -> None:
        self.product, self.chosen = None, {}


def winning_choice(product: Product, goal: Goal) -> Mapping[str, str] | None:
    """Options (name -> value) with which a product earns the full score; None if none do."""
    if goal.max_price is not None and product.price > goal.max_price:
        return None
    if type_factor(product, goal) < 1.0:
        return None
    if not all(has_attribute(product, attribute) for attribute in goal.attributes):
        return None
    choice: dict[str, str] = {}
    for wanted in goal.options:
        if any(is_same_option(value, wanted) for value in choice.values()):
            continue
        fitting = [
            (value != wanted, name, value)
            for name, values in product.options.items()
            for value in values
            if name not in choice and is_same_option(value, wanted)
        ]
        if not fitting:
            return None
        _, name, value = min(fitting)
        choice[name] = value
    return choice


def queries(goal: Goal) -> list[str]:
    """What a customer types: the kind with the attributes, the kind, then all of the title."""
    with_attributes = ", ".join([goal.kind, *goal.attributes])
    with_options = ", ".join([with_attributes, *goal.options])
    return [query for query in (with_attributes, with_options, goal.kind, goal.title) if query]


def best_search(catalogue: Catalogue, goal: Goal) -> tuple[str, int, Product] | None:
    """The query that shows a product with the full score first, its rank, and the product."""
    finds = []
    for query in queries(goal):
        for rank, product in enumerate(catalogue.search(query)):
            if winning_choice(product, goal) is not None:
                finds.append((rank, query, product))
                break
    if not finds:
        return None
    rank, query, product = min(finds, key=lambda find: find[0])
    return query, rank, product
