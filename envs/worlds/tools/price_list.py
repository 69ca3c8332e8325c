"""PriceList: what does a shopping list cost? Look the prices up, calculate, answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from echoscope.text.pictures import card_frame

from ...base import EnvSpec, Observation, StepResult, Tool, hash_task, normalise
from ...params import require_within
from ..task_env import some_of
from .calculator import CalculationError, calculate, number_text, read_number
from .tool_env import ToolEnv, spoken, tool_of

GOODS: tuple[str, ...] = (
    "apple", "bread", "butter", "cheese", "coffee", "egg", "fish", "flour", "honey", "jam", "lemon",
    "milk", "nut", "oil", "onion", "pasta", "pear", "rice", "salt", "sugar", "tea", "tomato",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceListConfig:
    """Difficulty of `price_list`.

    `items`: different goods on the shopping list. `max_quantity`: the most pieces of one.
    `max_price`: prices are whole numbers from 2 to this. `calculator`: whether there is a tool that
    calculates, or the policy has to do it itself.
    """

    items: int = 2
    max_quantity: int = 5
    max_price: int = 20
    calculator: bool = True

    def __post_init__(self) -> None:
        require_within(self, items=(1, 6), max_quantity=(1, 99), max_price=(3, 9999))


_LOOKUP = tool_of("lookup", "Price of one piece.", 1, item={"type": "string"})
_CALCULATE = tool_of(
    "calculate", "Value of an expression with + - * /.", 1, expression={"type": "string"}
)


class PriceList(ToolEnv[PriceListConfig]):
    """What a shopping list costs, with a price list that only a tool can read.

    Description:
        The task names goods and quantities. Prices are drawn anew for every task, so they must be
        looked up; a second tool calculates.
    Observation:
        "What do 3 tea and 2 bread cost together?", then the result of each call.
    Actions:
        `lookup {"item": "tea"}`, `calculate {"expression": "3*4+2*7"}`, `answer 26`. A policy calls
        tools in its own model's format.
    Rewards:
        1 for the right answer, else 0.
    Episode end:
        After the first answer.
    Success:
        The answer was right.
    Seeds:
        `seed` draws the shopping list and the prices; `noise_seed` is not used.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> world = PriceList(PriceListConfig(items=1))
        >>> first = world.reset(seed=3, noise_seed=0)
        >>> [world.step(action).reward for action in world.solve()][-1]
        1.0
    """

    spec = EnvSpec(
        id="price_list",
        config_type=PriceListConfig,
        max_turns=6,
        max_actions_per_turn=2,
        description="Look up prices and calculate, by tool calls: what does a shopping list cost?",
    )
    is_over = is_solved = False

    def __init__(self, config: PriceListConfig | None = None) -> None:
        super().__init__(config)
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        rng = np.random.default_rng(seed)
        names = some_of(rng, GOODS, self._config.items)
        self._wanted = {name: int(rng.integers(1, self._config.max_quantity + 1)) for name in names}
        prices = rng.integers(2, self._config.max_price + 1, size=len(GOODS))
        self._prices = {name: int(price) for name, price in zip(GOODS, prices, strict=True)}
        parts = [f"{number} {name}" for name, number in self._wanted.items()]
        listed = " and ".join([", ".join(parts[:-1]), parts[-1]] if parts[1:] else parts)
        self._question = f"What do {listed} cost together?"
        total = sum(self._prices[name] * number for name, number in self._wanted.items())
        self._total = Fraction(total)
        self._known: set[str] = set()
        self._is_sum_known = False
        self.is_over = self.is_solved = False

    def observe(self) -> Observation:
        return self._told(self._question)

    def instructions(self) -> str:
        by_tool = " and calculate by tool" if self._config.calculator else ""
        return (
            f"You are asked what a shopping list costs. Look up the price of each good{by_tool}, "
            "then answer with the number alone."
        )

    def tools(self) -> tuple[Tool, ...]:
        return (_LOOKUP, _CALCULATE) if self._config.calculator else (_LOOKUP,)

    def call(self, name: str, arguments: Mapping[str, Any]) -> StepResult:
        return self._look_up(arguments) if name == "lookup" else self._calculate(arguments)

    def answer(self, text: str) -> StepResult:
        self.is_over, self.is_solved = True, read_number(text) == self._total
        word = "Right" if self.is_solved else "Wrong"
        told = self._told(f"{word}: it costs {number_text(self._total)}.")
        return self.result(float(self.is_solved), told)

    def plan(self) -> list[str]:
        """Look up what is not known yet, calculate, answer."""
        actions = [
            f'lookup {{"item": "{name}"}}' for name in self._wanted if name not in self._known
        ]
        if self._config.calculator and not self._is_sum_known:
            sums = "+".join(f"{n}*{self._prices[name]}" for name, n in self._wanted.items())
            actions.append(f'calculate {{"expression": "{sums}"}}')
        return [*actions, f"answer {number_text(self._total)}"]

    def guesses(self) -> tuple[str, ...]:
        """A look at some good of the list, and an answer that counts only the pieces."""
        looks = tuple(f'lookup {{"item": "{name}"}}' for name in self._wanted)
        return (*looks, f"answer {sum(self._wanted.values())}")

    def task_key(self) -> str:
        """The list in the order shown, and the prices of what is on it."""
        listed = [[name, number, self._prices[name]] for name, number in self._wanted.items()]
        return hash_task(self.spec.id, listed)

    def _look_up(self, arguments: Mapping[str, Any]) -> StepResult:
        name = normalise(str(arguments["item"]))
        if name not in self._prices:
            return self.result(0.0, Observation(text="No such good."), is_effective=False)
        is_news = name in self._wanted and name not in self._known
        self._known.add(name)
        text = f"{name}: {self._prices[name]}"
        return self.result(0.0, self._told(text, "lookup"), is_effective=is_news)

    def _calculate(self, arguments: Mapping[str, Any]) -> StepResult:
        try:
            value = calculate(str(arguments["expression"]))
        except CalculationError as error:
            return self.result(0.0, Observation(text=f"Error: {error}."), is_effective=False)
        is_news = value == self._total and not self._is_sum_known
        self._is_sum_known = self._is_sum_known or value == self._total
        return self.result(0.0, self._told(number_text(value), "calculate"), is_effective=is_news)

    def _told(self, text: str, tool: str = "") -> Observation:
        lines = [
            f"{number} {good}" + (f" at {self._prices[good]}" if good in self._known else "")
            for good, number in self._wanted.items()
        ]
        if self.is_over:
            lines.append(text)
        return spoken(text, card_frame("Price list", lines), tool=tool)
