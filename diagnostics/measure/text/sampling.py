"""The text of rollouts that nobody measured while they were made, in bounded time.

At most `MAX_STEPS` steps, spread evenly, and at most `MAX_TRAJECTORIES` trajectories of each, whole
groups first. An import stores these measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from echoscope.store.records import Split, Trajectory

if TYPE_CHECKING:
    from .report import TextReport

MAX_STEPS = 60
MAX_TRAJECTORIES = 64
SEED = 20_260
IN_ORDER = 8 * MAX_TRAJECTORIES
"""Of a step of at most so many trajectories, the sample stands in the order of their ids; of a
larger one, group by group."""


def evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most so many of these steps, the first and the last among them.

    >>> evenly([3, 5], 60), len(evenly(range(1000), 60))
    ([3, 5], 60)
    """
    places = np.linspace(0, len(steps) - 1, most if len(steps) else 0)
    return [steps[place] for place in np.unique(places.astype(int))]


def sample(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    """What is measured of a step's trajectories: of training (or imported), and not too many."""
    own = [t for t in trajectories if t.split in (Split.TRAIN, Split.IMPORT)]
    own.sort(key=lambda t: (t.group_index, t.sibling_index, t.id))
    chosen = own[:MAX_TRAJECTORIES]
    return sorted(chosen, key=lambda t: t.id) if len(own) <= IN_ORDER else chosen


def measure_sample(trajectories: Sequence[Trajectory]) -> TextReport:
    """What the text of such a sample says; equal samples, equal reports."""
    from .measures import text_metrics

    return text_metrics(trajectories, np.random.default_rng(SEED))


def words_of_sample(num_measured: int, num_steps: int) -> str:
    """What was measured, for a reader of the numbers.

    >>> words_of_sample(2, 3)
    'text of 2 of 3 steps was measured, at most 64 trajectories of each'
    """
    return (
        f"text of {num_measured} of {num_steps} steps was measured, at most {MAX_TRAJECTORIES} "
        "trajectories of each"
    )
