"""A reward that an untrained policy gets a little of, so that gradients in tests are real."""

from __future__ import annotations

from echoscope.store.records import Turn


def lower_case_share(turn: Turn) -> float:
    """Share of a to z among the characters of a reply; about 0.1 for random bytes."""
    return sum("a" <= c <= "z" for c in turn.response) / max(1, len(turn.response))
