"""Sets of evaluation tasks whose mean is judged: what each did by itself, and in words."""

from __future__ import annotations

from echoscope.text.amounts import percent

from ..claims import Change
from .outcome import Outcome

LEAST_UNSOLVED = 3
"""Measurements of a set of tasks without success, from which that is said."""


def moves_of_sets(outcome: Outcome) -> list[Change]:
    """What sets of tasks did by themselves, beyond chance, the largest fall first.

    Empty where there is one set.
    """
    moves = [of_set.last_change for of_set in outcome.sets.values() if of_set.shows_turn]
    return sorted(moves, key=lambda move: move.after.value - move.before.value)


def has_risen_set(outcome: Outcome) -> bool:
    """Whether one of the sets rose by itself."""
    return any(move.direction == "rise" for move in moves_of_sets(outcome))


def unsolved_sets(outcome: Outcome) -> list[str]:
    """Tags of the sets of tasks of which none was ever solved, in several measurements."""
    return [
        key.split("/")[1]
        for key, of_set in outcome.sets.items()
        if outcome.is_rate and of_set.count >= LEAST_UNSOLVED and of_set.peak <= 0
    ]


def set_words(move: Change) -> str:
    """`` `math` 30 % -> 50 % ``: what a set of evaluation tasks did."""
    return f"`{set_name(move)}` {percent(move.before.value)} -> {percent(move.after.value)}"


def set_name(move: Change) -> str:
    """The tag of a set of evaluation tasks."""
    return move.metric.split("/")[1]


def of_sets(outcome: Outcome) -> str:
    """` (mean of 3 sets)` where several sets of tasks are averaged; empty of one.

    >>> from echoscope.diagnostics.judge.courses.channels import OUTCOMES
    >>> outcome = Outcome(spec=OUTCOMES[1])
    >>> outcome.update(5, {"eval/math/success_rate": 0.5, "eval/code/success_rate": 0.7})
    >>> of_sets(outcome)
    ' (mean of 2 sets)'
    """
    num_sets = len(outcome.tagged)
    return f" (mean of {num_sets} sets)" if num_sets > 1 else ""
