"""ShopTools: the shop of `webshop`, acted on by tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from echoscope.text.tool_calls import ANSWER, call_action

from ...base import EnvSpec, Message, Observation, StepResult, Tool, normalise
from ..tools.tool_env import ToolEnv
from .products import Catalogue
from .shopping import (
    ShopSource,
    catalogue_of,
    draw_visit,
    key_of,
    outcome,
    product_line,
    purchase_info,
    results_line,
    visit_frame,
)
from .visit import Visit, best_search, winning_choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ShopToolsConfig(ShopSource):
    """Source and pages of `shop_tools`.

    `products`, `attributes`: WebShop's files (`items_shuffle*.json`, `items_ins_v2*.json`); give
    both or neither. Without them the catalogue that ships is used. `human_goals`: WebShop's
    `items_human_ins.json`; without it the goals are made from `attributes`. `num_products`: the
    first so many products, with the goals about them; null for all. `page_size`: results on a page.
    """

    page_size: int = 5


def _tool(name: str, description: str, required: int, **properties: Any) -> Tool:
    return Tool(
        name=name,
        description=description,
        parameters={
            "type": "object",
            "properties": properties,
            "required": list(properties)[:required],
        },
    )


_TEXT = {"type": "string"}
TOOLS: tuple[Tool, ...] = (
    _tool(
        "search",
        "Products that fit some words, a page of them.",
        1,
        query=_TEXT,
        page={"type": "integer", "minimum": 1},
    ),
    _tool("open", "A product's options, price and features.", 1, product=_TEXT),
    _tool("choose", "Choose an option of the open product.", 2, option=_TEXT, value=_TEXT),
    _tool("buy", "Buy the open product with the chosen options. Ends the task.", 0),
)


class ShopTools(ToolEnv):
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
        self._catalogue: Catalogue = catalogue_of(self._config)
        self._visit = Visit(self._catalogue, self._catalogue.goals[0], self._config.page_size)

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._visit = draw_visit(self._catalogue, self._config.page_size, seed, noise_seed)
        return self._observe(self._visit.goal.text, "user", "")

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
        return self._result(self._observe(text, "tool", name), is_effective)

    def answer(self, text: str) -> StepResult:
        self._visit.give_up()
        return self._result(self._observe("Nothing was bought.", "user", ""), is_effective=True)

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
                page = place // self._config.page_size + 1
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

    def task_key(self) -> str:
        """The goal."""
        return key_of(self.spec.id, self._visit.goal)

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

    def _result(self, observation: Observation, is_effective: bool) -> StepResult:
        score = self._visit.score
        return StepResult(
            observation=observation,
            reward=0.0 if score is None else score.total,
            terminated=self.is_over,
            success=self.is_solved,
            is_valid=True,
            is_effective=is_effective,
            info=purchase_info(self._visit),
        )

    def _observe(self, text: str, role: Any, name: str) -> Observation:
        message = Message(role=role, name=name, content=text)
        return Observation(text=text, frame=visit_frame(self._visit), messages=(message,))
