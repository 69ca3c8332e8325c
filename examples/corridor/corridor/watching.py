"""The observer: does the policy walk both ways?"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echoscope.core.run.observers import StepObservation


class Directions:
    """Share of moves to the left, in this step and over the whole run."""

    def __init__(self) -> None:
        self._left = self._moves = 0

    def observe(self, seen: StepObservation) -> dict[str, float]:
        moves = [
            action
            for episode in seen.rollouts.trajectories
            for turn in episode.turns
            for action in turn.actions
        ]
        left = moves.count("left")
        self._left += left
        self._moves += len(moves)
        return {
            "left/share": left / len(moves) if moves else math.nan,
            "left/share_so_far": self._left / self._moves if self._moves else math.nan,
        }

    def state(self) -> list[int]:
        return [self._left, self._moves]

    def restore(self, state: list[int]) -> None:
        self._left, self._moves = state
