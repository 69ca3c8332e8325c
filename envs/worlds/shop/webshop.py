"""WebShop: search a shop, look at products page by page, choose options, buy."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from ...base import EnvSpec, Observation, StepResult
from .products import Product
from .shopping import (
    ShopSource,
    ShopTask,
    outcome,
    product_line,
    purchase_info,
    results_line,
    section_lines,
    visit_frame,
)
from .visit import Section, Visit, best_search, winning_choice

BACK_TO_SEARCH, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
_ACTION = re.compile(r"(search|click)\[(.*)\]", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebShopConfig(ShopSource):
    """Source, pages and reward of `webshop`.

    `products`, `attributes`: WebShop's files (`items_shuffle*.json`, `items_ins_v2*.json`); give
    both or neither. Without them the catalogue that ships is used. `human_goals`: WebShop's
    `items_human_ins.json`; without it the goals are made from `attributes`. `num_products`: the
    first so many products, with the goals about them; null for all. `page_size`: results on a page.
    `show_attributes`: products have a page that lists their attributes, as WebShop's `show_attrs`.
    `observation`: `lines` is one fact a line; `sep` is WebShop's text mode, its parts joined by
    [SEP]. `reward`: `score` is WebShop's score of the purchase, `success` is 1 for a score of 1.
    """

    show_attributes: bool = False
    observation: Literal["lines", "sep"] = "lines"
    reward: Literal["score", "success"] = "score"


class WebShop(ShopTask):
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
        entry_point=f"{__name__}:WebShop",
        config_type=WebShopConfig,
        max_turns=15,
        max_actions_per_turn=1,
        description="Search a shop, choose options, and buy what the instruction asks for.",
        requires=("bm25s", "rapidfuzz"),
        extra="shop",
    )

    def __init__(self, config: WebShopConfig | None = None) -> None:
        self._config = WebShopConfig() if config is None else config
        super().__init__(self._config)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self.begin(seed, noise_seed)
        return self.observe()

    def step(self, action: str) -> StepResult:
        match = _ACTION.fullmatch(action.strip().casefold())
        is_valid = False
        if match is not None and match[1] == "search":
            is_valid = self._visit.place == "search" and self._visit.search(match[2].strip())
        elif match is not None:
            press = self._buttons().get(match[2].strip())
            is_valid = press is not None and press()
        if not is_valid:
            return replace(self.refused(action), info={})
        return self.result(self._reward)

    def info(self) -> dict[str, float]:
        return purchase_info(self._visit)

    def instructions(self) -> str:
        return (
            "You shop for a customer. Find a product that fits the instruction, choose the wanted "
            "options and buy it within the price limit. Actions: search[keywords] on the search "
            "page, and click[...] with anything that the page offers. click[buy now] ends the "
            "shopping."
        )

    def solve(self) -> list[str] | None:
        """Search, open the first product that fits, choose options, buy; None where none fits."""
        visit = self._visit
        if visit.is_over:
            return [] if visit.is_solved else None
        if visit.product is not None:
            choice = winning_choice(visit.product, visit.goal)
            if choice is not None:
                before = [_click(PREVIOUS)] if visit.place == "section" else []
                labels = _option_labels(visit, self._sections)
                clicks = [
                    _click(labels[name, value])
                    for name, value in choice.items()
                    if visit.chosen.get(name) != value
                ]
                return [*before, *clicks, _click(BUY)]
        for product in visit.shown if visit.place == "results" else ():
            if winning_choice(product, visit.goal) is not None:
                return self._purchase(product)
        before = [] if visit.place == "search" else [_click(BACK_TO_SEARCH)]
        best = best_search(self._catalogue, visit.goal)
        if best is None:
            return None
        query, place, product = best
        pages = [_click(NEXT)] * (place // self._page_size)
        return [*before, f"search[{query}]", *pages, *self._purchase(product)]

    def legal_actions(self) -> tuple[str, ...]:
        """The clicks of the open page; a search cannot be listed."""
        return tuple(_click(label) for label in self._buttons())

    def guesses(self) -> tuple[str, ...]:
        """Any click of the page, or a search for the kind alone."""
        kind = self._visit.goal.kind or self._visit.goal.title
        return self.legal_actions() or (f"search[{kind}]",)

    @property
    def _reward(self) -> float:
        if self._visit.score is None:
            return 0.0
        if self._config.reward == "success":
            return float(self._visit.is_solved)
        return self._visit.score.total

    @property
    def _sections(self) -> tuple[Section, ...]:
        if self._config.show_attributes:
            return ("description", "features", "attributes")
        return ("description", "features")

    def _purchase(self, product: Product) -> list[str]:
        """From the page of results that shows a fitting product to its purchase."""
        visit = Visit(self._catalogue, self._visit.goal, self._page_size)
        visit.open(product)
        labels = _option_labels(visit, self._sections)
        choice = winning_choice(product, visit.goal) or {}
        options = [_click(labels[pair]) for pair in choice.items()]
        return [_click(product.asin), *options, _click(BUY)]

    def _buttons(self) -> dict[str, Callable[[], bool]]:
        """What can be clicked on the open page: its label, and what it does."""
        visit = self._visit
        if visit.place in ("search", "done"):
            return {}
        buttons: dict[str, Callable[[], bool]] = {BACK_TO_SEARCH: visit.leave}
        if visit.place == "results":
            if visit.page > 1:
                buttons[PREVIOUS] = partial(visit.turn_to, visit.page - 1)
            if visit.page < visit.num_pages:
                buttons[NEXT] = partial(visit.turn_to, visit.page + 1)
            for product in visit.shown:
                buttons[product.asin.casefold()] = partial(visit.open, product)
            return buttons
        buttons[PREVIOUS] = visit.back
        if visit.place == "product":
            for (name, value), label in _option_labels(visit, self._sections).items():
                buttons[label] = partial(visit.choose, name, value)
            for section in self._sections:
                buttons[section] = partial(visit.read, section)
            buttons[BUY] = visit.buy
        return buttons

    def observe(self) -> Observation:
        visit = self._visit
        frame = visit_frame(visit)
        actions = ["search[keywords]"] if visit.place == "search" else list(self.legal_actions())
        if self._config.observation == "sep":
            text = " [SEP] ".join(self._parts())
            listed = f"\nAvailable actions: {', '.join(actions)}" if actions else ""
            return Observation(text=f"{text}{listed}", frame=frame)
        listed = f"\nActions: {', '.join(actions)}" if actions else ""
        page = "\n".join([f"Instruction: {visit.goal.text}", *self._lines()])
        return Observation(text=f"{page}{listed}", frame=frame)

    def _lines(self) -> list[str]:
        """The open page, one fact a line."""
        visit = self._visit
        if visit.place == "results":
            return [results_line(visit), *map(product_line, visit.shown)]
        if visit.place == "done":
            return [outcome(visit)]
        if visit.product is None:
            return []
        title = product_line(visit.product)
        if visit.place == "section":
            return [title, *section_lines(visit)]
        options = [f"{name}: {', '.join(v)}" for name, v in visit.product.options.items()]
        chosen = ", ".join(f"{name}: {value}" for name, value in visit.chosen.items())
        return [title, *options, f"Chosen: {chosen or 'nothing'}"]

    def _parts(self) -> list[str]:
        """The open page as WebShop's text mode has it."""
        visit = self._visit
        parts = ["Instruction:", visit.goal.text]
        if visit.place == "search":
            return ["WebShop", *parts, "Search"]
        if visit.place == "done":
            return [*parts, outcome(visit)]
        parts.append("Back to Search")
        if visit.place == "results":
            parts.append(f"Page {visit.page} (Total results: {len(visit.results)})")
            parts += ["< Prev"] if visit.page > 1 else []
            parts += ["Next >"] if visit.page < visit.num_pages else []
            for each in visit.shown:
                parts += [each.asin, each.title, each.price_text]
            return parts
        parts.append("< Prev")
        if visit.product is None or visit.place == "section":
            return [*parts, *section_lines(visit)]
        for name, values in visit.product.options.items():
            marked = (
                f"{value} (chosen)" if visit.chosen.get(name) == value else value
                for value in values
            )
            parts += [name, *marked]
        parts += [visit.product.title, f"Price: {visit.product.price_text}"]
        return [*parts, *(section.capitalize() for section in self._sections), "Buy Now"]


def _click(label: str) -> str:
    return f"click[{label.casefold()}]"


def _option_labels(visit: Visit, sections: tuple[Section, ...]) -> dict[tuple[str, str], str]:
    """What to click for each (name, value); the name stands before values that are not unique."""
    pairs = [
        (name, value)
        for name, values in (visit.product.options if visit.product else {}).items()
        for value in values
    ]
    taken = Counter([BACK_TO_SEARCH, PREVIOUS, BUY, *sections, *(value for _, value in pairs)])
    return {
        (name, value): f"{name}: {value}" if taken[value] > 1 else value for name, value in pairs
    }
