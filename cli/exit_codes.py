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


class FailOn(StrEnum):
    COLLAPSE = "collapse"
    WATCH = "watch"


def exit_code(verdict: Verdict, fail_on: FailOn) -> Exit:
    """The exit code of a verdict."""
    from echoscope.diagnostics.judge.alarms import RunState

    if verdict.state is RunState.INSUFFICIENT:
        return Exit.INSUFFICIENT
    is_failure = verdict.state.is_failure or (
        fail_on is FailOn.WATCH and verdict.state is RunState.WATCH
    )
    return Exit.COLLAPSE if is_failure else Exit.OK
