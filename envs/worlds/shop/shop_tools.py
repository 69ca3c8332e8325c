"""ShopTools: the shop of `webshop`, acted on by tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echoscope.text.tool_calls import ANSWER, call_action

from ...base import EnvSpec, Observation, StepResult, Tool, normalise
from ..tools.tool_env import ToolEnv, spoken, tool_of
from .shopping import (
    ShopSource,
    ShopTask,
    outcome,
    product_line,
    purchase_info,
    results_line,
    visit_frame,
)
from .visit import best_search, winning_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopToolsConfig(ShopSource):
    """Source and pages of `shop_tools`.

    `products`, `attributes`: WebShop's files (`items_shuffle*.json`, `items_ins_v2*.json`); give
    both or neither. Without them the catalogue that ships is used. `human_goals`: WebShop's
    `items_human_ins.json`; without it the goals are made from `attributes`. `num_products`: the
    first so many products, with the goals about them; null for all. `page_size`: results on a page.
    """

    page_size: int = 5


_TEXT = {"type": "string"}
TOOLS: tuple[Tool, ...] = (
    tool_of(
        "search",
        "Products that fit some words, a page of them.",
        1,
        query=_TEXT,
        page={"type": "integer", "minimum": 1},
    ),
    tool_of("open", "A product's options, price and features.", 1, product=_TEXT),
    tool_of("choose", "Choose an option of the open product.", 2, option=_TEXT, value=_TEXT),
    tool_of("buy", "Buy the open product with the chosen options. Ends the task.", 0),
)


class ShopTools(ShopTask, ToolEnv):
    """A shop by tool calls: search, open a product, choose options, buy.

    Description:
        The goals, products, search and score of `webshop`; each step is a call of a tool.
    Observation:
        The customer's instruction, then the result of each call.
    Actions:
        `search {"query": "desk lamp, dimmable"}`, `open {"product": "P012"}`,
        `choose {"option": "color", "value": "black"}`, `buy {}`. An answer leaves the shop without
        a purchase. A policy calls tools in its own model's format.
    Rewards:
        At the purchase WebShop's score, 0 to 1 (see `webshop`); everything else earns 0.
    Episode end:
        The purchase, or an answer.
    Success:
        The score is 1.
    Seeds:
        `seed` draws the goal; `noise_seed` is not used.
    Requires:
        bm25s and rapidfuzz (`pip install -e '.[shop]'`).
    Example:
        >>> world = ShopTools(ShopToolsConfig())
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()][-1]
        1.0
    """

    spec = EnvSpec(
        id="shop_tools",
        entry_point=f"{__name__}:ShopTools",
        config_type=ShopToolsConfig,
        max_turns=10,
        max_actions_per_turn=2,
        description="Search a shop, choose options and buy, by tool calls.",
        requires=("bm25s", "rapidfuzz"),
        extra="shop",
    )

    def __init__(self, config: ShopToolsConfig | None = None) -> None:
        self._config = ShopToolsConfig() if config is None else config
        super().__init__(self._config)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self.begin(seed, noise_seed)
        return spoken(self._visit.goal.text, visit_frame(self._visit))

    def instructions(self) -> str:
        return (
            "You shop for a customer. Search, open a product that fits, choose the wanted options "
            "and buy it within the price limit. An answer leaves the shop without a purchase."
        )

    def tools(self) -> tuple[Tool, ...]:
        return TOOLS

    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        if name == "search":
            text, is_effective = self._search(str(arguments["query"]), arguments.get("page", 1))
        elif name == "open":
            text, is_effective = self._open(str(arguments["product"]))
        elif name == "choose":
            text, is_effective = self._choose(str(arguments["option"]), str(arguments["value"]))
        else:
            is_effective = self._visit.buy()
            text = outcome(self._visit) if is_effective else "Open a product first."
        told = spoken(text, visit_frame(self._visit), tool=name)
        return self.result(self._reward, told, is_effective=is_effective)

    def answer(self, text: str) -> StepResult:
        self._visit.give_up()
        return self.result(0.0, spoken("Nothing was bought.", visit_frame(self._visit)))

    def solve(self) -> list[str] | None:
        """Search, open the first product that fits, choose options, buy; None where none fits."""
        visit = self._visit
        if visit.is_over:
            return [] if visit.is_solved else None
        before: list[str] = []
        chosen = visit.chosen
        choice = None if visit.product is None else winning_choice(visit.product, visit.goal)
        if choice is None:
            product = next(
                (p for p in visit.shown if winning_choice(p, visit.goal) is not None), None
            )
            if product is None:
                best = best_search(self._catalogue, visit.goal)
                if best is None:
                    return None
                query, place, product = best
                page = place // self._page_size + 1
                arguments = {"query": query} if page == 1 else {"query": query, "page": page}
                before.append(call_action("search", arguments))
            before.append(call_action("open", {"product": product.asin}))
            choice, chosen = winning_choice(product, visit.goal) or {}, {}
        clicks = [
            call_action("choose", {"option": name, "value": value})
            for name, value in choice.items()
            if chosen.get(name) != value
        ]
        return [*before, *clicks, call_action("buy", {})]

    def guesses(self) -> tuple[str, ...]:
        """A search for the kind alone, a look at a result, a purchase as it is, and giving up."""
        kind = self._visit.goal.kind or self._visit.goal.title
        looks = tuple(call_action("open", {"product": each.asin}) for each in self._visit.shown)
        search = call_action("search", {"query": kind})
        return (search, *looks, call_action("buy", {}), f"{ANSWER} done")

    def info(self) -> dict[str, float]:
        return purchase_info(self._visit)

    @property
    def _reward(self) -> float:
        return 0.0 if self._visit.score is None else self._visit.score.total

    def _search(self, query: str, page: int) -> tuple[str, bool]:
        visit = self._visit
        if not visit.search(query):
            return "Search for at least one word.", False
        if page != 1 and not visit.turn_to(page):
            return f"There is no page {min(page, 10**6)}, only {visit.num_pages}.", True
        return "\n".join([results_line(visit), *map(product_line, visit.shown)]), True

    def _open(self, asin: str) -> tuple[str, bool]:
        product = self._catalogue.product(asin)
        if product is None or not self._visit.open(product):
            return "There is no such product.", False
        options = [f"{name}: {', '.join(values)}" for name, values in product.options.items()]
        features = [f"Features: {' '.join(product.features)}"] if product.features else []
        return "\n".join([product_line(product), *options, *features]), True

    def _choose(self, option: str, value: str) -> tuple[str, bool]:
        visit = self._visit
        if visit.product is None:
            return "Open a product first.", False
        if not visit.choose(normalise(option), normalise(value)):
            return "The open product has no such option.", False
        chosen = ", ".join(f"{name}: {taken}" for name, taken in visit.chosen.items())
        return f"Chosen: {chosen}.", True
