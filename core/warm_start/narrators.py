"""What a demonstration says before it acts: short reasoning in two ways of thinking.

A narrator thinks either **carefully**, when it says what the observation shows and why the expert's
next action follows, or **carelessly**, when it admits to guessing and guesses. A policy that has
seen both can learn from reward which way of thinking pays: something general, and therefore quick.
Those of the shipped policies are in `examples/narrators`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from echoscope.text.user_code import UserCodeError, call, load


@runtime_checkable
class Narrator(Protocol):
    """Reasoning text for one environment."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        """(reasoning, action). `plan` is the expert's path from here and has at least one action.

        The action is usually `plan[0]`; a narrator may weigh differently where the expert's choice
        is what a policy is to find out.
        """
        ...

    def careless(self, action: str, rng: np.random.Generator) -> str:
        """Reasoning for an action that was drawn at random."""
        ...


def pick(phrases: Sequence[str], rng: np.random.Generator) -> str:
    return phrases[int(rng.integers(len(phrases)))]


class PlainNarrator:
    """Knows nothing about the world but what the expert does next."""

    def careful(
        self, observation: str, plan: Sequence[str], rng: np.random.Generator
    ) -> tuple[str, str]:
        phrases = (
            f"The best next action is {plan[0]}.",
            f"I know the way: {plan[0]} comes next.",
            f"From here, {plan[0]} leads to the goal.",
        )
        return pick(phrases, rng), plan[0]

    def careless(self, action: str, rng: np.random.Generator) -> str:
        phrases = (
            f"I am not sure. Let me try {action}.",
            f"No idea. I guess {action}.",
            f"Maybe {action} works.",
        )
        return pick(phrases, rng)


NarratorOf = Callable[[str], Narrator]
"""Takes the id of an environment."""


def plain_narrator(env_id: str) -> Narrator:
    """One narrator for every environment."""
    return PlainNarrator()


def load_narrators(name: str) -> NarratorOf:
    """The user's own function from the id of an environment to its narrator; "" for a plain one.

    Args:
        name: `module:function`, or an entry point of `echoscope.narrators`.

    Raises:
        UserCodeError: it cannot be imported. Its result raises it where it makes no narrator.
    """
    if not name:
        return plain_narrator
    function = load("narrator", name)

    def narrator_of(env_id: str) -> Narrator:
        narrator = call("narrator", name, function, env_id)
        if not isinstance(narrator, Narrator):
            raise UserCodeError(
                f"narrator plug-in {name!r} returned {type(narrator).__name__} for {env_id!r}, but "
                "must return an object with the methods careful and careless"
            )
        return narrator

    return narrator_of
