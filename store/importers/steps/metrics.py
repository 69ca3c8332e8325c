"""Metrics that another trainer wrote beside its rollouts, read already: what an import adds to the
steps of a run. Reading them is the matter of `diagnostics`, which knows whose names mean what."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...query.metric_keys import EVALUATIONS, RETURN_MEAN

IS_RECONSTRUCTED = "reward/is_reconstructed"
"""Beside a return that was made up from parts."""
_RETURNS = (RETURN_MEAN, "reward/return_std", "reward/return_min", "reward/return_max")


def joined(
    counted: Mapping[str, float],
    told: Mapping[str, float],
    *,
    is_told: Callable[[str], bool],
    has_return: bool,
) -> dict[str, float]:
    """The numbers of a step: of its rollouts, and of its trainer.

    Args:
        counted: of the rollouts.
        told: by the trainer, under its names and ours. It fills what is not counted.
        is_told: whether a key is the trainer's in all steps.
        has_return: the trainer tells its own return, which is preferred to one made up from parts.
    """
    values = {key: value for key, value in counted.items() if not is_told(key)}
    if has_return and IS_RECONSTRUCTED in counted:
        values = {k: v for k, v in values.items() if k not in (*_RETURNS, IS_RECONSTRUCTED)}
    return values | {k: v for k, v in told.items() if math.isnan(values.get(k, math.nan))}


@dataclass(frozen=True, kw_only=True)
class Beside:
    """The metrics of one run, step by step, and which numbers of its rollouts they replace.

    A key has one source in all steps, because two sources seldom measure the same: the metrics
    files where they have the key in at least as many steps as there are steps with rollouts, else
    the rollouts. A number that the rollouts do not give is taken from the files in any case.
    Evaluations are rarer than steps: where the files give any, all of their numbers are the files'.
    """

    steps: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """Under the trainer's own names, and under ours where a name is understood."""
    wall_times: Mapping[int, float] = field(default_factory=dict)
    """Seconds since the epoch, of the steps of which the files say them."""
    trainer: str = ""
    """Whose names the metrics have; "" where nobody's are known."""
    description: Mapping[str, Any] = field(default_factory=dict)
    """Kept in the run's configuration: files, notes, and which column each key came from."""
    num_steps_with_rollouts: int = 0

    @cached_property
    def counts(self) -> Counter[str]:
        """In how many steps each key has a value."""
        return Counter(
            key
            for numbers in self.steps.values()
            for key, value in numbers.items()
            if not math.isnan(value)
        )

    @property
    def has_evaluations(self) -> bool:
        return any(key.startswith(EVALUATIONS) for key in self.counts)

    def is_told(self, key: str) -> bool:
        """Whether the rollouts do not give the key."""
        return 0 < self.counts[key] >= self.num_steps_with_rollouts

    def digest(self, step: int, rows: str) -> str:
        """What tells whether a step changed: of its rows, and of its numbers if it has any."""
        numbers = self.steps.get(step)
        if rows and self.has_evaluations:
            rows = f"{rows} without evaluations"
        if numbers is None:
            return rows
        values = sorted((key, repr(value)) for key, value in numbers.items())
        text = json.dumps([rows, values, sorted(filter(self.is_told, numbers))])
        return hashlib.blake2b(text.encode(errors="replace"), digest_size=12).hexdigest()

    def joined(self, step: int, counted: Mapping[str, float]) -> dict[str, float]:
        """One step's numbers; `counted` are those of its rollouts."""
        return joined(
            counted,
            self.steps.get(step, {}),
            is_told=self.is_told,
            has_return=self.counts[RETURN_MEAN] > 0,
        )
