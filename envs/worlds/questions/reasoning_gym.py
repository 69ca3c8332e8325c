"""The generators of the package reasoning-gym as worlds: `reasoning_gym:NAME`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...base import EnvParamsError, EnvSpec, shorten
from ...params import require, require_known, require_within
from .generator_worker import made_entry, score
from .question_env import Question, QuestionEnv

_DRAWS_BY_PROCESS = ("bf", "codeio", "isomorphic_strings", "ransom_note", "word_ladder")
"""They draw from sets of texts, whose order is another in each process."""
_LEFT_OUT = (*_DRAWS_BY_PROCESS, "composite", "game_of_life_halting", "polynomial_multiplication")
"""One is made of other generators; the scorer of one takes the question for an answer, and that of
one refuses right answers where it can open nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGymConfig:
    """Which generator, and how it is asked.

    `name`: the generator, such as `chain_sum`; the id `reasoning_gym:chain_sum` names it. `params`:
    settings of the generator, such as `{min_terms: 2}`. `attempts`: answers in an episode.
    """

    name: str
    params: Mapping[str, Any] = field(default_factory=dict)
    attempts: int = 1

    def __post_init__(self) -> None:
        require_within(self, attempts=(1, math.inf))
        for owned in ("seed", "size"):
            require(owned not in self.params, f"params has {owned}, which the world sets itself")


class ReasoningGym(QuestionEnv):
    """A question that one of reasoning-gym's generators draws, scored by its own rules.

    Description:
        Arithmetic, algebra, logic, grids, games, graphs, text and codes: 98 generators.
    Observation:
        The question; after a wrong answer "Wrong. Try again." or the right one.
    Actions:
        The answer alone, in the form that the question asks for.
    Rewards:
        The generator's score, 0 to 1, at the first attempt; half as much at every further one.
    Episode end:
        An answer with the score 1, or no attempt is left. An answer that the scorer fails on costs
        no attempt.
    Success:
        An answer had the score 1.
    Seeds:
        `seed` draws the question; `noise_seed` is not used.
    Requires:
        reasoning-gym (`pip install -e '.[gyms]'`). Its scorers run in a process that can open
        nothing, since some of them evaluate what the policy has written.
    Example:
        >>> world = ReasoningGym(ReasoningGymConfig(name="chain_sum"))  # doctest: +SKIP
        >>> first = world.reset(seed=3, noise_seed=0)  # doctest: +SKIP
        >>> world.step(world.solve()[0]).reward  # doctest: +SKIP
        1.0
    """

    spec = EnvSpec(
        id="reasoning_gym",
        config_type=ReasoningGymConfig,
        max_turns=3,
        description="Answer a question of reasoning-gym, such as reasoning_gym:chain_sum.",
        requires=("reasoning-gym",),
        extra="gyms",
        quotes_answers=True,
    )

    _config: ReasoningGymConfig

    def __init__(self, config: ReasoningGymConfig) -> None:
        super().__init__(config, None)
        require_known("reasoning_gym has no generator", config.name, self.names())
        self._seed = 0
        try:
            made_entry(config.name, config.params, 0)
        except (TypeError, ValueError, AssertionError) as error:
            raise EnvParamsError(f"{config.name}: {shorten(str(error), 300)}") from None

    @staticmethod
    def names() -> tuple[str, ...]:
        """The generators of the installed package."""
        from reasoning_gym.factory import DATASETS

        return tuple(sorted(set(DATASETS).difference(_LEFT_OUT)))

    def draw(self, rng: np.random.Generator) -> Question:
        self._seed = int(rng.integers(2**32))
        _, entry = made_entry(self._config.name, self._config.params, self._seed)
        answer = "" if entry["answer"] is None else str(entry["answer"])
        return Question(text=str(entry["question"]), answer=answer)

    def score(self, action: str) -> float | None:
        config = self._config
        return score(config.name, config.params, self._seed, action.strip())

    def instructions(self) -> str:
        return "Solve the problem. Action: the answer alone, in the form that is asked for."
