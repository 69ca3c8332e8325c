"""WebShop: search a shop, look at products page by page, choose options, buy."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from echoscope.text.pictures import card_frame

from ...base import EnvSpec, Observation, StepResult, hash_task, shorten
from ...params import require, require_within
from ..search.bm25 import MAX_QUERY_CHARS
from ..task_env import TaskEnv, drawn
from .products import Catalogue, Goal, Product, made_catalogue
from .scoring import Score, best_search, score_purchase, winning_choice
from .webshop_files import read_catalogue

BACK_TO_SEARCH, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
SHOWN_QUERY_CHARS = 100
_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)
_SECTIONS = ("description", "features")
Place = Literal["search", "results", "product", "section", "done"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebShopConfig:
    """Source and pages of `webshop` and `shop_tools`.

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

    def catalogue(self) -> Catalogue:
        """The products and goals.

        Raises:
            EnvUnavailableError: a file cannot be read, or holds nothing of use.
        """
        if self.products is None or self.attributes is None:
            return made_catalogue(self.num_products)
        return read_catalogue(self.products, self.attributes, self.human_goals, self.num_products)


class WebShop(TaskEnv[WebShopConfig]):
    """A shop in text: find and buy a product with the wanted attributes, options and price.

    Description:
        A customer's instruction names a kind of product, attributes, options and a price limit. 360
        products of our own ship, with 1,440 goals, which say attributes in other words than the
        products ("its seams must never come apart") and half of the options by what they are not;
        WebShop's own files give its products and goals. Search is BM25, at most 50 results.
    Observation:
        The instruction, the open page (search box, results, product, section), and the actions that
        this page allows.
    Actions:
        `search[desk lamp, dimmable]` where there is a search box; `click[...]` for everything that
        can be clicked: a product's number, `next >`, `< prev`, `back to search`, an option's value,
        `description`, `features`, `buy now`.
    Rewards:
        At the purchase WebShop's score, 0 to 1: the share of wanted attributes, options and price
        limit that the purchase meets, times a factor for the wrong kind of product
        (Yao et al. 2022, https://arxiv.org/abs/2207.01206). Everything else earns 0.
    Episode end:
        The purchase.
    Success:
        The score is 1.
    Seeds:
        `seed` draws the goal; `noise_seed` is not used.
    Requires:
        bm25s and rapidfuzz (`pip install -e '.[shop]'`).
    Example:
        >>> world = WebShop(WebShopConfig())
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()][-1]
        1.0
    """

    spec = EnvSpec(
        id="webshop",
        config_type=WebShopConfig,
        max_turns=15,
        description="Search a shop, choose options, and buy what the instruction asks for.",
        requires=("bm25s", "rapidfuzz"),
        extra="shop",
    )
    is_over = is_solved = False

    def __init__(self, config: WebShopConfig | None = None) -> None:
        super().__init__(config)
        self._catalogue = self._config.catalogue()
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        goals = self._catalogue.goals
        self._goal: Goal = goals[drawn(seed, len(goals))]
        self.is_over = self.is_solved = False
        self._place: Place = "search"
        self._query, self._page = "", 1
        self._results: tuple[Product, ...] = ()
        self._product: Product | None = None
        self._section = ""
        self._chosen: dict[str, str] = {}
        self._score: Score | None = None

    def step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip().casefold())
        word, content = (match[1], match[2].strip()) if match is not None else ("", "")
        press = self._buttons().get(content) if word == "click" else None
        if word == "search" and self._place == "search" and content:
            self._query, self._results = content[:MAX_QUERY_CHARS], self._catalogue.search(content)
            self._turn_to(1)
        elif press is not None:
            press()
        else:
            return replace(self.refused(action), info={})
        return self.result(0.0 if self._score is None else self._score.total)

    def give_up(self) -> StepResult:
        """Leave the shop without a purchase."""
        self._place, self.is_over = "done", True
        return self.result(0.0, Observation(text="Nothing was bought.", frame=self._card()))

    def info(self) -> dict[str, float]:
        if self._score is None or self._product is None:
            return {}
        return {
            "score": self._score.total,
            "type_factor": self._score.type_factor,
            "matched_attributes": float(self._score.matched_attributes),
            "matched_options": float(self._score.matched_options),
            "is_affordable": float(self._score.is_affordable),
            "is_target": float(self._product.asin == self._goal.asin),
        }

    def instructions(self) -> str:
        return (
            "You shop for a customer. Find a product that fits the instruction, choose the wanted "
            "options and buy it within the price limit. Actions: search[keywords] on the search "
            "page, and click[...] with anything that the page offers. click[buy now] ends the "
            "shopping."
        )

    def plan(self) -> list[str] | None:
        """Search, open the first product that fits, choose options, buy; None where none fits."""
        if self._product is not None and winning_choice(self._product, self._goal) is not None:
            before = [_click(PREVIOUS)] if self._place == "section" else []
            return [*before, *self._purchase(self._product, self._chosen)]
        for product in self._on_page if self._place == "results" else ():
            if winning_choice(product, self._goal) is not None:
                return [_click(product.asin), *self._purchase(product, {})]
        best = best_search(self._catalogue, self._goal)
        if best is None:
            return None
        query, rank, product = best
        before = [] if self._place == "search" else [_click(BACK_TO_SEARCH)]
        pages = [_click(NEXT)] * (rank // self._config.page_size)
        way = [*before, f"search[{query}]", *pages, _click(product.asin)]
        return [*way, *self._purchase(product, {})]

    def legal_actions(self) -> tuple[str, ...]:
        """The clicks of the open page; a search cannot be listed."""
        return tuple(_click(label) for label in self._buttons())

    def guesses(self) -> tuple[str, ...]:
        """Any click of the page, or a search for the kind alone."""
        return self.legal_actions() or (f"search[{self._goal.kind or self._goal.title}]",)

    def task_key(self) -> str:
        """The goal: what is asked for, and what a purchase is compared with."""
        goal = self._goal
        return hash_task(
            self.spec.id, goal.text, goal.asin, goal.kind, goal.title, goal.attributes, goal.options
        )

    @property
    def num_tasks(self) -> int:
        return self._catalogue.num_goals

    @property
    def _num_pages(self) -> int:
        return max(1, -(-len(self._results) // self._config.page_size))

    @property
    def _on_page(self) -> tuple[Product, ...]:
        first = (self._page - 1) * self._config.page_size
        return self._results[first : first + self._config.page_size]

    def _buttons(self) -> dict[str, Callable[[], None]]:
        """What can be clicked on the open page: its label, and what it does."""
        if self._place in ("search", "done"):
            return {}
        buttons: dict[str, Callable[[], None]] = {BACK_TO_SEARCH: self._leave}
        if self._place == "results":
            if self._page > 1:
                buttons[PREVIOUS] = partial(self._turn_to, self._page - 1)
            if self._page < self._num_pages:
                buttons[NEXT] = partial(self._turn_to, self._page + 1)
            for product in self._on_page:
                buttons[product.asin.casefold()] = partial(self._open, product)
            return buttons
        buttons[PREVIOUS] = partial(self._go_to, "product")
        if self._place == "product" and self._product is not None:
            buttons[PREVIOUS] = partial(self._turn_to, self._page)
            for (name, value), label in _option_labels(self._product).items():
                buttons[label] = partial(self._choose, name, value)
            for section in _SECTIONS:
                buttons[section] = partial(self._go_to, "section", section)
            buttons[BUY] = partial(self._buy, self._product)
        return buttons

    def _leave(self) -> None:
        self._query, self._results = "", ()
        self._turn_to(1)
        self._place = "search"

    def _turn_to(self, page: int) -> None:
        self._page, self._place = page, "results"
        self._product, self._chosen = None, {}

    def _open(self, product: Product) -> None:
        self._product, self._chosen, self._place = product, {}, "product"

    def _choose(self, name: str, value: str) -> None:
        self._chosen[name] = value

    def _go_to(self, next_place: Place, section: str = "") -> None:
        self._place, self._section = next_place, section

    def _buy(self, product: Product) -> None:
        self._score, self._place = score_purchase(product, self._goal, self._chosen), "done"
        self.is_over, self.is_solved = True, self._score.total >= 1.0

    def _purchase(self, product: Product, chosen: dict[str, str]) -> list[str]:
        """From a product's page to its purchase."""
        labels = _option_labels(product)
        choice = winning_choice(product, self._goal) or {}
        missing = [pair for pair in choice.items() if chosen.get(pair[0]) != pair[1]]
        return [*(_click(labels[pair]) for pair in missing), _click(BUY)]

    def observe(self) -> Observation:
        actions = ["search[keywords]"] if self._place == "search" else list(self.legal_actions())
        listed = f"\nActions: {', '.join(actions)}" if actions else ""
        page = "\n".join([f"Instruction: {self._goal.text}", *self._lines()])
        return Observation(text=f"{page}{listed}", frame=self._card())

    def _lines(self) -> list[str]:
        """The open page, one fact a line."""
        if self._place == "results":
            query = shorten(self._query, SHOWN_QUERY_CHARS)
            head = f'{len(self._results)} results for "{query}"'
            pages = f"page {self._page} of {self._num_pages}"
            return [f"{head}, {pages}", *map(_product_line, self._on_page)]
        if self._place == "done":
            return [self._outcome()]
        if self._product is None:
            return []
        title = _product_line(self._product)
        if self._place == "section":
            is_features = self._section == "features"
            texts = self._product.features if is_features else (self._product.description,)
            return [title, *([text for text in texts if text] or [f"No {self._section}."])]
        options = [f"{name}: {', '.join(v)}" for name, v in self._product.options.items()]
        chosen = ", ".join(f"{name}: {value}" for name, value in self._chosen.items())
        return [title, *options, f"Chosen: {chosen or 'nothing'}"]

    def _card(self) -> str:
        """The picture for people: the open page, what is chosen, and how it ended."""
        lines = self._lines() or ["Search box"]
        return card_frame(f"Shop: {self._place}", [self._goal.text, "", *lines])

    def _outcome(self) -> str:
        """What was bought, and how it was scored."""
        if self._product is None or self._score is None:
            return "Nothing was bought."
        score, goal = self._score, self._goal
        limit = "within" if score.is_affordable else "over"
        return (
            f"Bought {self._product.asin}. Score {score.total:.2f}: "
            f"{score.matched_attributes} of {len(goal.attributes)} attributes, "
            f"{score.matched_options} of {len(goal.options)} options, {limit} the price limit, "
            f"type {score.type_factor:g}."
        )


def _product_line(product: Product) -> str:
    """A product as results list it."""
    return f"{product.asin}: {product.title}, {product.price_text}"


def _click(label: str) -> str:
    return f"click[{label.casefold()}]"


def _option_labels(product: Product) -> dict[tuple[str, str], str]:
    """What to click for each (name, value); the name stands before values that are not unique."""
    pairs = [(name, value) for name, values in product.options.items() for value in values]
    taken = Counter([BACK_TO_SEARCH, PREVIOUS, BUY, *_SECTIONS, *(value for _, value in pairs)])
    return {
        (name, value): f"{name}: {value}" if taken[value] > 1 else value for name, value in pairs
    }
