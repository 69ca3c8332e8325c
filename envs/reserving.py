"""Which tasks belong to evaluation, so that no other split plays them.

A task is named by its key, a hash of its first state (`TextEnv.task_key`). One residue class of the
keys, an eighth of all tasks, is evaluation's: evaluation draws again until the key lies in it, and
every other split until it does not. The rule knows no seed and no run, so it holds across seeds,
resumed runs, branches, demonstrations and later evaluations of the same weights.

A world with few tasks cannot spare an eighth of them; see `TaskVariety`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .base import EnvParamsError
from .turns.turn import TurnEnv

EVALUATION_SEED = 1_000_000
"""Draws the tasks of an evaluation where nobody names another seed: the same for everyone, and no
training's own, whose best checkpoint may have been chosen by its evaluation's tasks."""
EVALUATION_SHARE = 8
"""One key in this many is evaluation's."""
MIN_TASKS = 256
"""Different tasks from which on evaluation has its own."""
MAX_DRAWS = 256
"""Tasks tried before a draw is given up. With enough tasks that has a chance of 1e-15."""
SURVEY_SEEDS: tuple[int, ...] = tuple(number << 2 | 3 for number in range(64))
"""Tasks that are looked at to count the different ones; no split's seeds end in these bits."""


def is_reserved(task_key: str) -> bool:
    """Whether this task is evaluation's."""
    return int(task_key, 16) % EVALUATION_SHARE == 0


def may_play(split: str, task_key: str) -> bool:
    """Whether a split may play this task, where tasks are reserved."""
    return is_reserved(task_key) == (split == "eval")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskVariety:
    """How many different tasks a world draws.

    `num_tasks` is what the environment declares, else the effective number of tasks, estimated from
    those of `SURVEY_SEEDS`: the number of pairs over the number of equal pairs, which is
    1 / sum(p^2) over the tasks' probabilities. None: no two of them were equal.
    """

    num_tasks: int | None

    @property
    def is_enough(self) -> bool:
        """Whether evaluation can have tasks of its own."""
        return self.num_tasks is None or self.num_tasks >= MIN_TASKS


def variety_of(world: TurnEnv) -> TaskVariety:
    """The variety of a world's tasks; may leave it in an episode that nobody wants."""
    declared = world.num_tasks
    if declared is not None:
        return TaskVariety(num_tasks=declared)
    drawn = Counter(world.reset(seed, 0).task_key for seed in SURVEY_SEEDS)
    del drawn[None]  # of those that could not start
    equal, pairs = equal_pairs(drawn.values())
    if not pairs:
        return TaskVariety(num_tasks=0)
    return TaskVariety(num_tasks=round(pairs / equal) if equal else None)


def equal_pairs(counts: Iterable[int]) -> tuple[int, int]:
    """How many pairs of draws are equal, and how many pairs there are.

    Args:
        counts: how often each different task was drawn.
    """
    counted = list(counts)
    return sum(n * (n - 1) // 2 for n in counted), sum(counted) * (sum(counted) - 1) // 2


def gave_up(tag: str, split: str) -> EnvParamsError:
    """The error of a world that never draws a task this split may play."""
    tasks_text = "one of the tasks reserved for evaluation" if split == "eval" else "any other task"
    return EnvParamsError(
        f"{tag}: {MAX_DRAWS} seeds in a row did not draw {tasks_text}, which happens only with few "
        f"different tasks; let the environment's num_tasks return their number (below {MIN_TASKS} "
        "none are reserved)"
    )


def few_tasks(varieties: Sequence[tuple[str, TaskVariety]]) -> str:
    """One line that names the environments without reserved tasks; empty if there are none.

    Args:
        varieties: (tag, variety) of each environment, of training and of evaluation.
    """
    few = {
        repr(tag): f"{tag!r} ({variety.num_tasks})"
        for tag, variety in varieties
        if not variety.is_enough
    }
    if not few:
        return ""
    return (
        f"no tasks are reserved for evaluation where fewer than {MIN_TASKS} are different: "
        f"{', '.join(few.values())}. Training and evaluation may share tasks there, unless their "
        "parameters keep them apart"
    )
