"""What a verdict means to a script: the exit codes of `diagnose` and `watch`."""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echoscope.diagnostics.judge.record import Verdict


class Exit(IntEnum):
    OK = 0
    """Healthy, converged, or watch."""
    USAGE = 2
    COLLAPSE = 3
    UNREADABLE = 4
    INSUFFICIENT = 5
    CRASHED = 6
    """The curves are in order, and the run ended by an accident."""


class FailOn(StrEnum):
    COLLAPSE = "collapse"
    WATCH = "watch"


def exit_code(verdict: Verdict, fail_on: FailOn) -> Exit:
    """The exit code of a verdict."""
    from echoscope.diagnostics.judge.alarms import RunState
    from echoscope.diagnostics.judge.claims import Fate

    has_crashed = any(
        isinstance(claim, Fate) and claim.kind in ("crashed", "failed") for claim in verdict.claims
    )
    if verdict.state is RunState.INSUFFICIENT:
        return Exit.INSUFFICIENT
    is_failure = verdict.state.is_failure or (
        fail_on is FailOn.WATCH and verdict.state is RunState.WATCH
    )
    if is_failure:
        return Exit.COLLAPSE
    return Exit.CRASHED if has_crashed else Exit.OK
