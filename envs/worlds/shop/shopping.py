"""What `webshop` and `shop_tools` share: where products and goals come from, and the visit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...base import hash_task, shorten
from ...frames import card_frame
from ...params import require, require_within
from ..task_env import TaskEnv, task_generator
from .made_catalogue import made_catalogue
from .products import Catalogue, Goal, Product
from .visit import Visit
from .webshop_files import read_catalogue

SHOWN_QUERY_CHARS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopSource:
    """Where products and goals come from, and how many results a page shows.

    `products`, `attributes`: WebShop's files (`items_shuffle*.json`, `items_ins_v2*.json`); give
    both or neither. Without them the catalogue that ships is used. `human_goals`: WebShop's
    `items_human_ins.json`; without it the goals are made from `attributes`. `num_products`: the
    first so many products, with the goals about them; null for all. `page_size`: results on a page.
    """

    products: str | None = None
    attributes: str | None = None
    human_goals: str | None = None
    num_products: int | None = None
    page_size: int = 10

    def __post_init__(self) -> None:
        require(
            (self.products is None) == (self.attributes is None),
            "products and attributes go together: give both of WebShop's files, or neither",
        )
        require(
            self.human_goals is None or self.products is not None,
            "human_goals needs products and attributes: give all three of WebShop's files",
        )
        require_within(self, num_products=(1, math.inf), page_size=(1, 50))


def catalogue_of(source: ShopSource) -> Catalogue:
    """The catalogue that a source names.

    Raises:
        EnvUnavailableError: a file cannot be read, or holds nothing of use.
    """
    if source.products is not None and source.attributes is not None:
        return read_catalogue(
            source.products, source.attributes, source.human_goals, source.num_products
        )
    return made_catalogue(source.num_products)


class ShopTask(TaskEnv):
    """A visit to the shop for a goal that the seed draws, however it is acted on."""

    def __init__(self, config: ShopSource) -> None:
        super().__init__(config)
        self._page_size = config.page_size
        self._catalogue = catalogue_of(config)
        self._visit = Visit(self._catalogue, self._catalogue.goals[0], self._page_size)

    def begin(self, seed: int, noise_seed: int) -> None:
        """Start the visit of a seed."""
        goals = self._catalogue.goals
        goal = goals[int(task_generator(seed, noise_seed).integers(len(goals)))]
        self._visit = Visit(self._catalogue, goal, self._page_size)

    def task_key(self) -> str:
        """The goal: what is asked for, and what a purchase is compared with."""
        goal: Goal = self._visit.goal
        return hash_task(
            self.spec.id, goal.text, goal.asin, goal.kind, goal.title, goal.attributes, goal.options
        )

    @property
    def num_tasks(self) -> int:
        """The different goals of the catalogue."""
        return self._catalogue.num_goals

    @property
    def is_over(self) -> bool:
        return self._visit.is_over

    @property
    def is_solved(self) -> bool:
        return self._visit.is_solved


def visit_frame(visit: Visit) -> str:
    """The card that Replay shows: the open page, what is chosen, and how it ended."""
    lines = [visit.goal.text, ""]
    if visit.place == "search":
        lines.append("Search box")
    if visit.place == "results":
        lines.append(results_line(visit))
        lines += map(product_line, visit.shown)
    if visit.product is not None:
        lines.append(product_line(visit.product))
        for name, values in visit.product.options.items():
            marked = (f"[{v}]" if visit.chosen.get(name) == v else v for v in values)
            lines.append(f"{name}: {', '.join(marked)}")
    if visit.place == "section":
        lines += section_lines(visit)
    if visit.place == "done":
        lines.append("Nothing was bought." if visit.score is None else outcome(visit))
    return card_frame(f"Shop: {visit.place}", lines)


def results_line(visit: Visit) -> str:
    """How many results there are for which query, and which page is open."""
    query = shorten(visit.query, SHOWN_QUERY_CHARS)
    return f'{len(visit.results)} results for "{query}", page {visit.page} of {visit.num_pages}'


def product_line(product: Product) -> str:
    """A product as results list it."""
    return f"{product.asin}: {product.title}, {product.price_text}"


def section_lines(visit: Visit) -> list[str]:
    """The open section of the open product."""
    if visit.product is None:
        return []
    texts = {
        "description": (visit.product.description,),
        "features": visit.product.features,
        "attributes": visit.product.attributes,
    }[visit.section]
    return [text for text in texts if text] or [f"No {visit.section}."]


def outcome(visit: Visit) -> str:
    """What was bought, and how it was scored."""
    if visit.product is None or visit.score is None:
        return "Nothing was bought."
    score, goal = visit.score, visit.goal
    limit = "within" if score.is_affordable else "over"
    return (
        f"Bought {visit.product.asin}. Score {score.total:.2f}: "
        f"{score.matched_attributes} of {len(goal.attributes)} attributes, "
        f"{score.matched_options} of {len(goal.options)} options, {limit} the price limit, "
        f"type {score.type_factor:g}."
    )


def purchase_info(visit: Visit) -> dict[str, float]:
    """The parts of the score for `info`; empty before a purchase."""
    if visit.score is None or visit.product is None:
        return {}
    score = visit.score
    return {
        "score": score.total,
        "type_factor": score.type_factor,
        "matched_attributes": float(score.matched_attributes),
        "matched_options": float(score.matched_options),
        "is_affordable": float(score.is_affordable),
        "is_target": float(visit.product.asin == visit.goal.asin),
    }
