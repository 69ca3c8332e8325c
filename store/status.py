"""Whose run it is and how it stands: the same on every page and in every command.

The files tell it: who holds the lock of the writer, how the journal was closed, which pause or stop
was applied, and when something was acknowledged last. A trainer that is gone has lost its lock, so
a crashed run is never taken for a silent one.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from echoscope.text.amounts import duration

from .records import ALARM_AUTHOR, CommandAction, CommandOutcome, author_words

if TYPE_CHECKING:
    from .reader import CommandState

RECENT_STEPS = 20
"""Steps whose median duration is the pace of a run."""
STALE_STEPS = 10
"""A live run that has acknowledged nothing for so many of its steps is stale ..."""
STALE_LEAST_S = 60.0
"""... but not before this many seconds."""
STALE_UNKNOWN_S = 300.0
"""The limit where the pace is not known."""
_ENDS = (CommandAction.STOP, CommandAction.STOP_NOW, CommandAction.REWIND)
RUNNING = "running"
"""`RunInfo.status` while a process holds the lock of the writer."""


EVALUATION = "evaluation"
"""Key of the configuration of a run in which somebody plays fixed tasks and nothing is trained."""


class Origin(StrEnum):
    """Who wrote the steps of a run."""

    TRAINED = "trained"
    """Our own trainer."""
    RECORDED = "recorded"
    """Another trainer, through the recorder in its loop."""
    WATCHED = "watched"
    """Another trainer; we follow the files that it writes."""
    IMPORTED = "imported"
    """Another trainer; we read its files once."""
    EVALUATED = "evaluated"
    """`echoscope eval`: nobody trains."""


def origin_of(config: Mapping[str, Any]) -> Origin:
    """Who wrote the steps of a run, by its configuration.

    >>> origin_of({"recorded": True}), origin_of({"watched": {"path": "logs"}, "imported": {}})
    (<Origin.RECORDED: 'recorded'>, <Origin.WATCHED: 'watched'>)
    """
    if config.get("watched"):
        return Origin.WATCHED
    if "imported" in config:
        return Origin.IMPORTED
    if isinstance(config.get(EVALUATION), Mapping):
        return Origin.EVALUATED
    return Origin.RECORDED if config.get("recorded") else Origin.TRAINED


def trainer_name(config: Mapping[str, Any]) -> str:
    """The other trainer by name, where the run says it; empty for a run of ours."""
    if origin_of(config) in (Origin.TRAINED, Origin.EVALUATED):
        return ""
    parts = (config.get("watched"), config.get("imported"), config)
    names = (part.get("trainer") for part in parts if isinstance(part, Mapping))
    return next((name[:80] for name in names if isinstance(name, str)), "")


class Status(StrEnum):
    """The one word."""

    LIVE = "live"
    WAITING = "waiting"
    """For its first step, or for the end of a step after which it pauses or stops."""
    PAUSED = "paused"
    STALE = "stale"
    """A process holds the run and has acknowledged nothing for long."""
    IMPORTED = "imported"
    """From files: whether the training behind them goes on is not known."""
    IMPORTING = "being imported"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CRASHED = "crashed"
    """No process holds the run, and nobody closed it."""


_OVER = (
    Status.FINISHED,
    Status.STOPPED,
    Status.FAILED,
    Status.INTERRUPTED,
    Status.CRASHED,
)


def has_ended(status: Status, origin: Origin) -> bool:
    """Does no step follow? Not where a trainer may go on whose files somebody else reads.

    >>> has_ended(Status.FINISHED, Origin.TRAINED), has_ended(Status.FINISHED, Origin.WATCHED)
    (True, False)
    """
    return status in _OVER and origin not in (Origin.WATCHED, Origin.IMPORTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStatus:
    """How a run stands. Texts come from commands: hostile."""

    status: Status
    by: str = ""
    """Who paused or stopped it, or asked for that."""
    reason: str = ""
    since: float | None = None
    """Seconds since the epoch: when it was paused, or was heard of last."""
    next_action: CommandAction | None = None
    """Of a waiting run: what happens after the current step; None before the first step."""
    is_resumed: bool = False
    """It had steps before the attempt that waits for its first one."""
    is_rewound: bool = False
    """It was stopped to go on from a checkpoint, as another run."""
    asks: bool = False
    """It is paused with a question: to be rewound, or to go on."""

    @property
    def is_imported(self) -> bool:
        """Steps came from files, at times that say nothing of the training."""
        return self.status in (Status.IMPORTED, Status.IMPORTING)

    def words(self, now: float) -> str:
        """The word with who, why and for how long.

        >>> RunStatus(status=Status.PAUSED, by="root", since=0.0).words(720.0)
        'paused by root for 12 min'
        """
        by = f" by {author_words(self.by)}" if self.by else ""
        lasts = "" if self.since is None else f" for {duration(max(0.0, now - self.since))}"
        if self.status is Status.PAUSED:
            return f"paused{by}{lasts}{'; answer with rewind or resume' * self.asks}"
        if self.status is Status.STALE:
            return f"stale, no news{lasts}"
        if self.status is Status.STOPPED:
            if self.by.startswith(ALARM_AUTHOR):  # its reason is the text of the alarm, a paragraph
                return f"stopped{by}"
            # After the colon the guard says which treatment it gives, a paragraph too.
            reason = self.reason.partition(": ")[0] if self.is_rewound else self.reason
            verb = "rewound" if self.is_rewound else "stopped"
            return f"{verb}{by}" + (f": {reason}" if self.by and reason else "")
        if self.status is not Status.WAITING:
            return self.status.value
        if self.next_action is None:
            return f"waiting for its {'next' if self.is_resumed else 'first'} step{lasts}"
        verb = "pauses" if self.next_action is CommandAction.PAUSE else "stops"
        return f"waiting for the current step, then {verb} (asked{by})"


def status_of(
    recorded: str,
    attempt: int,
    states: Iterable[CommandState],
    *,
    is_starting: bool,
    heard_at: float,
    step_s: float,
    now: float,
    origin: Origin = Origin.TRAINED,
) -> RunStatus:
    """How a run stands now.

    Args:
        recorded: `RunInfo.status`: "running" while a process holds it, else how it ended.
        attempt: The current one: a resumed run does not repeat a pause or a stop.
        states: Every command, as `RunReader.commands` gives them.
        is_starting: Whether this attempt has no step yet.
        heard_at: When something was acknowledged last, in seconds since the epoch.
        step_s: Usual seconds a step, NaN where that is not known.
        origin: Who wrote the steps.
    """
    if origin is Origin.IMPORTED and recorded in (RUNNING, Status.FINISHED):
        is_written = recorded != RUNNING
        return RunStatus(status=Status.IMPORTED if is_written else Status.IMPORTING)
    halts = halts_of(states, attempt)
    if recorded != RUNNING:
        # A word that this version does not know says no more than that the run has ended.
        status = Status(recorded) if recorded in set(Status) else Status.CRASHED
        if status is Status.STOPPED and halts.stop is not None:
            is_rewound = halts.stop.command.action is CommandAction.REWIND
            return _by_command(status, halts.stop, is_rewound=is_rewound)
        return RunStatus(status=status)
    if (pause := halts.pause) is not None and halts.next_stop is None:
        asks = bool(pause.command.settings)
        return _by_command(Status.PAUSED, pause, since=pause.answered_at, asks=asks)
    if is_starting and origin is not Origin.EVALUATED:  # whose episodes come before its steps
        return RunStatus(status=Status.WAITING, since=heard_at, is_resumed=attempt > 1)
    limit = max(STALE_LEAST_S, STALE_STEPS * step_s) if math.isfinite(step_s) else STALE_UNKNOWN_S
    if now - heard_at > limit:
        return RunStatus(status=Status.STALE, since=heard_at)
    coming = halts.next_stop or next(iter(halts.asked), None)
    if coming is not None:
        return _by_command(Status.WAITING, coming, next_action=coming.command.action)
    return RunStatus(status=Status.LIVE)


def _by_command(status: Status, state: CommandState, **values: Any) -> RunStatus:
    command = state.command
    return RunStatus(status=status, by=command.issued_by, reason=command.reason, **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Halts:
    """What pauses and stops add up to in one attempt: a resumed run repeats none of an earlier."""

    pause: CommandState | None
    """The pause that holds."""
    stop: CommandState | None
    """The stop that was applied."""
    asked: tuple[CommandState, ...]
    """Pauses and stops that wait for their answer."""

    @property
    def next_stop(self) -> CommandState | None:
        """The stop that was applied, or else the first that waits."""
        waiting = (state for state in self.asked if _is_stop(state))
        return self.stop or next(waiting, None)


def halts_of(states: Iterable[CommandState], attempt: int) -> Halts:
    """The pauses and stops among all commands, as `RunReader.commands` gives them."""
    pause = stop = None
    asked = []
    for state in states:
        action = state.command.action
        if state.ack is None:
            if action is CommandAction.PAUSE or _is_stop(state):
                asked.append(state)
        elif state.ack.outcome is CommandOutcome.APPLIED and state.attempt == attempt:
            if _is_stop(state):
                stop = state
            elif action is CommandAction.PAUSE:
                pause = pause or state
            elif action is CommandAction.RESUME:
                pause = None
    return Halts(pause=pause, stop=stop, asked=tuple(asked))


def _is_stop(state: CommandState) -> bool:
    return state.command.action in _ENDS


def pace_of(wall_times: Sequence[float]) -> float:
    """Median seconds between steps that ended at these times, in order; NaN for fewer than two.

    Steps at one and the same time were read from a file together and tell no pace.
    """
    recent = wall_times[-(RECENT_STEPS + 1) :]
    pairs = itertools.pairwise(recent)
    between = [later - earlier for earlier, later in pairs if later > earlier]
    return statistics.median(between) if between else math.nan


def after_step(step: int) -> str:
    """When something happened, by the step that was finished then.

    Alarms and checkpoints carry that step. A command carries the first step that it holds for:
    `after_step(ack.step - 1)`.

    >>> after_step(37), after_step(0)
    ('after step 37', 'before the first step')
    """
    return f"after step {step}" if step > 0 else "before the first step"
