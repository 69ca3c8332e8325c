"""Bandit: two arms with telling names, one safe and one risky, one choice."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from echoscope.text.pictures import card_frame

from ..base import EnvSpec, Observation, StepResult, hash_task, normalise
from ..params import require, require_within
from .task_env import TaskEnv, one_of

_TRAIN_PAIRS: tuple[tuple[str, str], ...] = (
    ("Clerk", "Pirate"),
    ("Librarian", "Gambler"),
    ("Gardener", "Daredevil"),
    ("Baker", "Explorer"),
    ("Teacher", "Stuntman"),
    ("Dentist", "Astronaut"),
    ("Tailor", "Smuggler"),
    ("Postman", "Inventor"),
    ("Notary", "Speculator"),
    ("Nurse", "Racer"),
    ("Farmer", "Prospector"),
    ("Judge", "Rebel"),
)
_TEST_PAIRS: tuple[tuple[str, str], ...] = (
    ("Accountant", "Adventurer"),
    ("Plumber", "Acrobat"),
    ("Pharmacist", "Outlaw"),
    ("Janitor", "Diver"),
    ("Archivist", "Raider"),
    ("Carpenter", "Matador"),
    ("Shepherd", "Spy"),
    ("Auditor", "Founder"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BanditConfig:
    """Names and payouts of `bandit`.

    `pairs`: which shipped names, "train" or "test" (no name is in both). `arms`: own pairs
    [low, high] instead. The low arm always pays `low_payout`; the high arm pays `high_payout` with
    `high_probability`, else `high_miss_payout`. The high arm must be better on average.
    """

    pairs: Literal["train", "test"] = "train"
    arms: tuple[tuple[str, str], ...] | None = None
    low_payout: float = 0.1
    high_payout: float = 1.0
    high_miss_payout: float = 0.0
    high_probability: float = 0.25

    def __post_init__(self) -> None:
        require_within(self, high_probability=(0, 1))
        payouts = (self.low_payout, self.high_payout, self.high_miss_payout)
        require(all(math.isfinite(p) for p in payouts), f"payouts are {payouts}, must be finite")
        require(
            self.high_mean > self.low_payout,
            f"the high arm pays {self.high_mean:g} on average, but must pay more than the low "
            f"arm's {self.low_payout:g}",
        )
        require(self.arms is None or len(self.arms) > 0, "arms is empty; give [[low, high], ...]")
        for low, high in self.name_pairs:
            names = (low.strip(), high.strip())
            require(
                all(names) and normalise(low) != normalise(high),
                f"the arms {low!r} and {high!r} must be two different names",
            )

    @property
    def high_mean(self) -> float:
        p = self.high_probability
        return p * self.high_payout + (1 - p) * self.high_miss_payout

    @property
    def name_pairs(self) -> tuple[tuple[str, str], ...]:
        """(low, high) names to draw from."""
        if self.arms is not None:
            return self.arms
        return _TRAIN_PAIRS if self.pairs == "train" else _TEST_PAIRS


class Bandit(TaskEnv[BanditConfig]):
    """Two arms, one choice.

    Description:
        One arm pays little but surely, the other pays much but rarely, and more on average. Their
        names hint at which is which. One task is one pair of names in one order, so all siblings
        of a group read the same prompt.
    Observation:
        "Arms: Clerk, Pirate." and after the choice "Pirate paid 1."
    Actions:
        The name of an arm.
    Rewards:
        The payout.
    Episode end:
        After one valid choice.
    Success:
        The high arm was chosen, whatever it paid.
    Seeds:
        `seed` draws the pair and its order; `noise_seed` the payout.
    Requires:
        Nothing beyond the base installation.
    Example:
        >>> bandit = Bandit(BanditConfig(high_probability=1.0))
        >>> first = bandit.reset(seed=3, noise_seed=0)
        >>> bandit.step(bandit.solve()[0]).reward
        1.0
    """

    spec = EnvSpec(
        id="bandit",
        config_type=BanditConfig,
        max_turns=1,
        description="Two arms with telling names: choose the one that pays more on average.",
    )
    is_over = is_solved = False

    def __init__(self, config: BanditConfig | None = None) -> None:
        super().__init__(config)
        self.begin(0, 0)

    def begin(self, seed: int, noise_seed: int) -> None:
        task, self._noise_seed = np.random.default_rng(seed), noise_seed
        self._low, self._high = one_of(task, self._config.name_pairs)
        is_swapped = bool(task.integers(2))
        self._shown = (self._high, self._low) if is_swapped else (self._low, self._high)
        self.is_over = self.is_solved = False
        self._payout, self._chosen = 0.0, ""

    def step(self, action: str) -> StepResult:
        named = [arm for arm in self._shown if normalise(arm) == normalise(action)]
        if not named or self.is_over:
            return replace(self.refused(action), info={})
        self._chosen = named[0]
        self.is_over, self.is_solved = True, self._chosen == self._high
        self._payout = self._draw_payout()
        return self.result(self._payout)

    def info(self) -> dict[str, float]:
        return {"chose_high": float(self._chosen == self._high)}

    def instructions(self) -> str:
        if self._config.high_probability == 1:
            pays = "one a little each time, one more. "
        elif self._config.high_probability >= 0.5:
            pays = "one a little each time, one a lot but not always, and more on average. "
        else:
            pays = "one a little each time, one a lot but rarely, and more on average. "
        return (
            f"Two arms pay points: {pays}Their names hint at which is which. Choose the arm that "
            "pays more on average. Action: the name of an arm."
        )

    def plan(self) -> list[str]:
        """The high arm."""
        return [self._high]

    def legal_actions(self) -> tuple[str, ...]:
        return self._shown

    def task_key(self) -> str:
        """The two names in the order shown, and which is the high arm: payouts play no part."""
        return hash_task(self.spec.id, self._shown, self._high)

    @property
    def num_tasks(self) -> int:
        """Two orders of every pair of names."""
        return 2 * len(set(self._config.name_pairs))

    def _draw_payout(self) -> float:
        if self._chosen == self._low:
            return self._config.low_payout
        luck = np.random.default_rng(self._noise_seed).random()
        is_hit = luck < self._config.high_probability
        return self._config.high_payout if is_hit else self._config.high_miss_payout

    def observe(self) -> Observation:
        if not self.is_over:
            text = f"Arms: {', '.join(self._shown)}."
        else:
            text = f"{self._chosen} paid {self._payout:g}."
        return Observation(text=text, frame=card_frame("Bandit", [*self._shown, text]))
