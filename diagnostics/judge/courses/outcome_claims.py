"""What an outcome claims: what is so beyond chance, as records."""

from __future__ import annotations

from collections.abc import Iterator

from ..claims import Claim, Dip, Lost
from .outcome import BOUND_Z, CHOSEN_Z, Outcome
from .sets import moves_of_sets


def claims_of(outcome: Outcome) -> Iterator[Claim]:
    """What is so, beyond chance; the most serious first."""
    if not outcome.count or not outcome.was_ready or not outcome.series.is_judgeable:
        return
    is_shown = outcome.shows_turn
    if outcome.is_down:
        if outcome.is_lost and outcome.is_nearly_lost:
            lost = outcome.change(outcome.best, outcome.since_turn, is_dated=True)
            yield Lost(change=lost, most_left=_most_left(outcome), num_points=outcome.num_low_rows)
        yield outcome.last_change
    elif outcome.turns.mode == "up" and is_shown:
        if outcome.bottom is not None:
            yield Dip(
                held=outcome.level_of(outcome.before(-2)),
                bottom=outcome.level_of(outcome.before()),
                now=outcome.level_of(outcome.since_turn),
                is_rising=outcome.still_rises,
                is_back=not outcome.is_below_best,
            )
        else:
            yield outcome.last_change
    yield outcome.level_of(outcome.now)
    yield from moves_of_sets(outcome)


def _most_left(outcome: Outcome) -> float:
    upper = outcome.series.bounds(outcome.since_turn, BOUND_Z)[1]
    if outcome.is_rate:
        held = outcome.series.bounds(outcome.best, CHOSEN_Z)[0]
        return min(upper / max(held, 1e-9), 1.0)
    # What it had gained is a difference of two levels, each known as well as its rows tell.
    floor = min(
        (outcome.series.bounds(stretch, BOUND_Z)[0] for stretch in outcome.floors),
        default=outcome.series.bounds(outcome.best, CHOSEN_Z)[0],
    )
    gain = outcome.series.bounds(outcome.best, BOUND_Z)[0] - floor
    return (upper - floor) / gain if gain > 0 else 0.0
