"""ShopTools: the shop of `webshop`, acted on by tool calls."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from ...base import StepResult, Tool
from ..tools.tool_env import CommandTools, tool_of
from .webshop import WebShop

_TEXT = {"type": "string", "minLength": 1}


class ShopTools(CommandTools):
    """A shop by tool calls: search, click, buy.

    Description:
        The goals, products, pages and score of `webshop`; each step is a call of a tool.
    Observation:
        The instruction with the page of the search, then the page that each call opens.
    Actions:
        `search {"query": "desk lamp, dimmable"}` on the page with the search box, and
        `click {"item": "P012"}` for everything that the open page offers; `buy now` ends the task.
        An answer leaves the shop. A policy calls tools in its own model's format.
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
        >>> world = ShopTools()
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()][-1]
        1.0
    """

    spec = replace(
        WebShop.spec,
        id="shop_tools",
        max_actions_per_turn=2,
        description="Search a shop, choose options and buy, by tool calls.",
    )
    inner = WebShop
    _world: WebShop
    commands: ClassVar[dict[str, str]] = {"search": "search[{query}]", "click": "click[{item}]"}

    def tools(self) -> tuple[Tool, ...]:
        return (
            tool_of("search", "Products that fit some words.", 1, query=_TEXT),
            tool_of("click", "Click anything that the open page offers.", 1, item=_TEXT),
        )

    def instructions(self) -> str:
        return (
            "You shop for a customer. Search, open a product that fits, choose the wanted options "
            "and buy it within the price limit. An answer leaves the shop without a purchase."
        )

    def finish(self, text: str) -> StepResult:
        return self._world.give_up()
