"""What a player is: it plays some tasks of an evaluation, and says what its replies cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from echoscope.diagnostics.measure.outcomes import CountedEpisode
from echoscope.envs.pool import EnvPool
from echoscope.store.records import Trajectory

from ..config.settings import RunConfig
from .plan import Budget
from .who import Who

IN_FLIGHT = 64
"""Episodes under way at a time, of a provider's model and where a budget may end the evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBatch:
    """Some tasks of an evaluation, which make one step of its run."""

    pool: EnvPool
    step: int
    """That the trajectories carry."""
    played: frozenset[int]
    """Slots of the pool whose episodes have been played before."""
    may_begin: Callable[[], bool]
    """Asked before a task begins; after False none does, and those under way are played on."""
    on_finished: Callable[[Sequence[Trajectory]], None]
    """Takes what has ended."""
    should_abort: Callable[[], bool]
    """True drops what is under way."""


@dataclass(slots=True, kw_only=True)
class Spent:
    """What replies cost."""

    num_input_tokens: int = 0
    """That a provider billed for."""
    num_output_tokens: int = 0
    cost: float | None = None
    """In US dollars; None where no price is known."""
    problems: list[str] = field(default_factory=list)
    """Why episodes could not be played."""

    @property
    def num_tokens(self) -> int:
        return self.num_input_tokens + self.num_output_tokens

    def add(self, num_input_tokens: int, num_output_tokens: int, cost: float | None) -> None:
        self.num_input_tokens += num_input_tokens
        self.num_output_tokens += num_output_tokens
        if cost is not None:
            self.cost = (self.cost or 0.0) + cost

    def plus(self, other: Spent) -> Spent:
        out = replace(self)
        out.add(other.num_input_tokens, other.num_output_tokens, other.cost)
        return out

    @classmethod
    def on(cls, outcomes: Iterable[CountedEpisode]) -> Spent:
        """What these episodes cost."""
        out = cls()
        for outcome in outcomes:
            out.add(outcome.num_input_tokens, outcome.num_tokens, outcome.cost)
        return out


class Player(Protocol):
    """Plays the episodes of a part that have not been played, each once."""

    spent: Spent
    """By this player, also on episodes that did not come to an end."""

    def play(self, part: TaskBatch) -> None: ...

    def close(self) -> None: ...


def make_player(who: Who, config: RunConfig, budget: Budget) -> Player:
    """The player that is meant.

    Raises:
        ConfigError, ChatFormatError, EngineError: it cannot play under these settings.
    """
    if who.is_provider:
        from .providers import ProviderPlayer

        return ProviderPlayer(who, config)
    from .weights import WeightsPlayer

    return WeightsPlayer(who, config, is_budgeted=budget.is_limited)
