"""What a narrator is, and the one for a world that has none of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np


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
