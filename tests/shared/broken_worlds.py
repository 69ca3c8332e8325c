"""A sound small world, and worlds with one fault each: what `check_env` has to find.

`Walk` is a row of cells with a walker and a flag. Each class of `FAULTS` differs from it in one
thing, which its docstring names.
"""

from __future__ import annotations

import random
import re
import time
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from echoscope.envs.base import (
    EnvSpec,
    Observation,
    StepResult,
    TextEnv,
    hash_task,
    normalise,
    prefixed,
)
from echoscope.text.pictures import card_frame

MOVES = {"left": -1, "right": 1}


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkConfig:
    size: int = 9


class Walk(TextEnv):
    """Walk along a row of cells to a flag.

    Description: a walker and a flag stand on two cells of a row.
    Observation: the two places.
    Actions: left, right.
    Rewards: -0.1 a move, 1 at the flag.
    Episode end: the walker is at the flag.
    Success: the same.
    Seeds: `seed` draws both places; `noise_seed` is not used.
    Requires: nothing.
    Example: `Walk().reset(0, 0)`
    """

    fault: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        cls.fault, cls.__doc__ = cls.__doc__ or "", Walk.__doc__

    spec = EnvSpec(
        id="walk",
        config_type=WalkConfig,
        max_turns=12,
        max_actions_per_turn=1,
        description="Walk to a flag.",
    )

    def __init__(self, config: WalkConfig | None = None) -> None:
        self._size = (config or WalkConfig()).size
        super().__init__(config or WalkConfig())
        self._place = self._flag = self._start = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        del noise_seed
        rng = np.random.default_rng(seed)
        self._start, self._flag = map(int, rng.choice(self._size, 2, replace=False))
        self._place = self._start
        return self.observe()

    def step(self, action: str) -> StepResult:
        move = MOVES.get(normalise(action))
        if move is None or self.is_over:
            observation = prefixed(self.invalid_notice(action), self.observe())
            return self.result(observation, 0.0, is_valid=False, is_effective=False)
        before, self._place = self._place, min(max(self._place + move, 0), self._size - 1)
        reward = 1.0 if self.is_over else -0.1
        return self.result(
            self.observe(), reward, is_valid=True, is_effective=self._place != before
        )

    @property
    def is_over(self) -> bool:
        return self._place == self._flag

    def observe(self) -> Observation:
        return Observation(text=self.sentence(), frame=card_frame("Walk", [self.sentence()]))

    def sentence(self) -> str:
        return f"You are at {self._place} of 0 to {self._size - 1}. The flag is at {self._flag}."

    def result(
        self, observation: Observation, reward: float, *, is_valid: bool, is_effective: bool
    ) -> StepResult:
        return StepResult(
            observation=observation,
            reward=reward,
            terminated=self.is_over,
            success=self.is_over,
            is_valid=is_valid,
            is_effective=is_effective,
            info={},
        )

    def instructions(self) -> str:
        return "Walk to the flag. Actions: left, right."

    def solve(self) -> list[str] | None:
        way = self._flag - self._place
        return ["right" if way > 0 else "left"] * abs(way)

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.is_over else tuple(MOVES)

    def task_key(self) -> str | None:
        return hash_task("walk", self._size, self._start, self._flag)

    @property
    def num_tasks(self) -> int | None:
        return self._size * (self._size - 1)


class AnswerInPrompt(Walk):
    """The first observation holds the expert's solution."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        first = super().reset(seed, noise_seed)
        return Observation(text=f"{first.text} (debug: {' '.join(self.solve() or [])})")


class PaysForNoise(Walk):
    """An invalid action earns 5."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return result if result.is_valid or self.is_over else replace(result, reward=5.0)


class PaysAfterTheEnd(Walk):
    """Every action after the end earns 1."""

    def step(self, action: str) -> StepResult:
        was_over = self.is_over
        result = super().step(action)
        return replace(result, reward=1.0) if was_over else result


class OneKeyForMaps(Walk):
    """The maps differ, the texts do not, and no key is given: all tasks have one key."""

    def sentence(self) -> str:
        return "Look at the map."

    def observe(self) -> Observation:
        return Observation(text=self.sentence(), frame=card_frame("Walk", [super().sentence()]))

    def task_key(self) -> str | None:
        return None

    @property
    def num_tasks(self) -> int | None:
        return None


class ConstantKey(Walk):
    """`task_key` forgets the task."""

    def task_key(self) -> str | None:
        return hash_task("walk", self._size)


class KeyOfTheSeed(Walk):
    """`task_key` is the seed's: one task has many keys, so evaluation is trained on."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._seed = seed
        return super().reset(seed, noise_seed)

    def task_key(self) -> str | None:
        return hash_task("walk", self._seed)


class AlwaysSuccess(Walk):
    """Every step is a success."""

    def step(self, action: str) -> StepResult:
        return replace(super().step(action), success=True)


class NeverSuccess(Walk):
    """No step is a success: the expert's solution solves nothing."""

    def step(self, action: str) -> StepResult:
        return replace(super().step(action), success=False)


class TooManyPromised(Walk):
    """Promises 5000 tasks and has 72."""

    @property
    def num_tasks(self) -> int | None:
        return 5000


class TooFewPromised(Walk):
    """Promises 4 tasks and has 72."""

    @property
    def num_tasks(self) -> int | None:
        return 4


class HugeObservation(Walk):
    """Answers with 5 MB of text after each step."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return replace(
            result, observation=Observation(text=result.observation.text + " log" * 1_250_000)
        )


class SharedState(Walk):
    """All instances share the place of the walker."""

    shared: ClassVar[dict[str, int]] = {"place": 0}

    @property
    def _place(self) -> int:
        return self.shared["place"]

    @_place.setter
    def _place(self, position: int) -> None:
        self.shared["place"] = position


class LeftOver(Walk):
    """`reset` forgets to reset the fuel: later episodes differ from the first."""

    def __init__(self, config: WalkConfig | None = None) -> None:
        super().__init__(config)
        self._fuel = 100

    def step(self, action: str) -> StepResult:
        self._fuel -= 1
        return super().step(action)

    def sentence(self) -> str:
        return f"{super().sentence()} Fuel: {self._fuel}."


class GlobalRandom(Walk):
    """Slips by Python's global random numbers."""

    def step(self, action: str) -> StepResult:
        return super().step(random.choice(["left", "right"]) if action in MOVES else action)


class ReadsTheClock(Walk):
    """The observation tells the time."""

    def sentence(self) -> str:
        return f"{super().sentence()} It is {time.time_ns()}."


class HashesText(Walk):
    """The start depends on Python's salted hash: another process plays another task."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return super().reset(hash(f"walk {seed}") % 2**63, noise_seed)


class NoiseIsTask(Walk):
    """`noise_seed` decides the task, too."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return super().reset(seed ^ noise_seed, noise_seed)


class InvalidMoves(Walk):
    """An action that is not understood moves the walker to the left."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        if (
            not result.is_valid
            and not self.is_over
            and self._place > 0
            and self._flag != self._place - 1
        ):
            self._place -= 1
        return result


class SolvingMoves(Walk):
    """`solve` plays on the real board."""

    def solve(self) -> list[str] | None:
        way = super().solve()
        self._place = self._flag
        return way


class FalseExpert(Walk):
    """The expert walks the wrong way."""

    def solve(self) -> list[str] | None:
        return [{"left": "right", "right": "left"}[move] for move in super().solve() or []]


class EchoPays(Walk):
    """Any action that names the flag's cell wins: a reply that repeats the observation is right."""

    def step(self, action: str) -> StepResult:
        if not self.is_over and str(self._flag) in action:
            self._place = self._flag
            return self.result(self.observe(), 1.0, is_valid=True, is_effective=True)
        return super().step(action)


class IdlePays(Walk):
    """Walking against the wall earns 1 each time, more than the flag."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        return (
            replace(result, reward=1.0) if result.is_valid and not result.is_effective else result
        )


class JunkIsValid(Walk):
    """Junk counts as a valid action."""

    def step(self, action: str) -> StepResult:
        return replace(super().step(action), is_valid=True)


class Endless(Walk):
    """Goes on after its end: a step after `terminated` moves again."""

    def step(self, action: str) -> StepResult:
        if self.is_over:
            self._place = self._start
        return super().step(action)


class NotANumber(Walk):
    """The reward of a walk against the wall is not a number."""

    def step(self, action: str) -> StepResult:
        result = super().step(action)
        is_idle = result.is_valid and not result.is_effective
        return replace(result, reward=float("nan")) if is_idle else result


class Raises(Walk):
    """Reads digits that `int` refuses: "\N{SUPERSCRIPT TWO}".isdigit() is true."""

    def step(self, action: str) -> StepResult:
        if action.strip().isdigit():
            self._size = max(self._size, int(action))
        return super().step(action)


class Sum(Walk):
    """Another sound world: one of many sums, answered by a number, without a list of actions."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        del noise_seed
        self._terms = tuple(map(int, np.random.default_rng(seed).integers(10, self.most(), 2)))
        self._num_attempts, self._is_right = 0, False
        return self.observe()

    def most(self) -> int:
        return 90

    @property
    def answer(self) -> str:
        return str(sum(self._terms))

    @property
    def is_over(self) -> bool:
        return self._is_right or self._num_attempts >= 2

    def step(self, action: str) -> StepResult:
        if self.is_over or not self.is_number(action):
            observation = prefixed(self.invalid_notice(action), self.observe())
            return replace(
                self.result(observation, 0.0, is_valid=False, is_effective=False),
                success=self._is_right,
            )
        self._num_attempts += 1
        self._is_right = self.is_right(action)
        result = self.result(
            self.observe(), float(self._is_right), is_valid=True, is_effective=True
        )
        return replace(result, success=self._is_right)

    def is_number(self, action: str) -> bool:
        return re.fullmatch(r"\s*[0-9]{1,4}\s*", action) is not None

    def is_right(self, action: str) -> bool:
        return action.strip() == self.answer

    def sentence(self) -> str:
        return f"What is {self._terms[0]} + {self._terms[1]}?"

    def instructions(self) -> str:
        return "Answer with a number."

    def solve(self) -> list[str] | None:
        return [] if self._is_right else None if self.is_over else [self.answer]

    def legal_actions(self) -> tuple[str, ...]:
        return ()

    def task_key(self) -> str | None:
        return hash_task("sum", self._terms)

    @property
    def num_tasks(self) -> int | None:
        return (self.most() - 10) ** 2


class AnswerShown(Sum):
    """The question ends with its answer."""

    def sentence(self) -> str:
        return f"{super().sentence()} <!-- {self.answer} -->"


class FewOfMany(Sum):
    """Promises 5000 tasks and has 9."""

    def most(self) -> int:
        return 13

    @property
    def num_tasks(self) -> int | None:
        return 5000


class ListRight(Sum):
    """Whoever lists all numbers has named the right one, too."""

    def is_number(self, action: str) -> bool:
        return re.search("[0-9]", action) is not None and len(action) < 5000

    def is_right(self, action: str) -> bool:
        return self.answer in re.findall("[0-9]+", action)


class EmptyRight(Sum):
    """An empty reply is right."""

    def is_number(self, action: str) -> bool:
        return not action.strip() or super().is_number(action)

    def is_right(self, action: str) -> bool:
        return not action.strip() or super().is_right(action)


class FiveMaps(Sum):
    """Five maps with one text and no key."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        return super().reset(seed % 5, noise_seed)

    def observe(self) -> Observation:
        return Observation(text="Which sum?", frame=card_frame("Sum", [super().sentence()]))

    def task_key(self) -> str | None:
        return None

    @property
    def num_tasks(self) -> int | None:
        return None


class HiddenAndKeyless(Sum):
    """The terms are hidden and no key is given: all tasks have one key."""

    def sentence(self) -> str:
        return "Guess the number."

    def task_key(self) -> str | None:
        return None


class KeyOfTheNoise(Sum):
    """The key depends on the noise."""

    def reset(self, seed: int, noise_seed: int) -> Observation:
        self._noise_seed = noise_seed
        return super().reset(seed, noise_seed)

    def task_key(self) -> str | None:
        return hash_task("sum", self._terms, self._noise_seed)


class WaveringExpert(Walk):
    """An expert whose solutions begin with a step back: asked at each turn, it never arrives."""

    def solve(self) -> list[str] | None:
        way = super().solve() or []
        if not way:
            return way
        back = "left" if way[0] == "right" else "right"
        is_at_the_wall = self._place == (0 if back == "left" else self._size - 1)
        return [back, *way, *way[:1]] if not is_at_the_wall else [back, *way]


class LookingMoves(Walk):
    """Asking for the legal actions moves the flag."""

    def legal_actions(self) -> tuple[str, ...]:
        if not self.is_over and self._flag + 1 not in (self._size, self._place):
            self._flag += 1
        return super().legal_actions()


class Counts(Walk):
    """Says how many episodes this process has played."""

    num_episodes: ClassVar[int] = 0

    def reset(self, seed: int, noise_seed: int) -> Observation:
        type(self).num_episodes += 1
        return super().reset(seed, noise_seed)

    def sentence(self) -> str:
        return f"{super().sentence()} Episode {self.num_episodes}."


FAULTS = (
    AnswerInPrompt,
    PaysForNoise,
    PaysAfterTheEnd,
    OneKeyForMaps,
    ConstantKey,
    KeyOfTheSeed,
    AlwaysSuccess,
    NeverSuccess,
    TooManyPromised,
    TooFewPromised,
    HugeObservation,
    SharedState,
    LeftOver,
    GlobalRandom,
    ReadsTheClock,
    HashesText,
    NoiseIsTask,
    InvalidMoves,
    SolvingMoves,
    FalseExpert,
    EchoPays,
    IdlePays,
    JunkIsValid,
    Endless,
    NotANumber,
    Raises,
)
"""Written before the check that finds them."""

LATER_FAULTS = (
    AnswerShown,
    FewOfMany,
    ListRight,
    EmptyRight,
    FiveMaps,
    HiddenAndKeyless,
    KeyOfTheNoise,
    WaveringExpert,
    LookingMoves,
    Counts,
)
"""Written after it."""
