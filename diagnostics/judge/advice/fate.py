"""What became of a run besides its curves: crashed, paused, stopped, failed or silent."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from echoscope.store.records import ALARM_AUTHOR, author_words
from echoscope.store.status import Origin, RunStatus, Status, origin_of
from echoscope.text.amounts import counted
from echoscope.text.sentences import capitalised

from ..claims import Fate, FateKind

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

MAX_REASON = 160
"""Characters of a reason that a sentence shows."""
_FATES: Mapping[Status, tuple[FateKind, str]] = {
    Status.STALE: ("silent", "The run is silent: nothing has come since {clock} ({after})."),
    Status.CRASHED: (
        "crashed",
        "The run crashed {after}: its process ended without closing it.",
    ),
    Status.FAILED: ("failed", "The run failed {after}: an error ended it."),
    Status.INTERRUPTED: ("stopped", "The run was interrupted {after}."),
    Status.PAUSED: ("paused", "paused {after} ({clock})"),
    Status.STOPPED: ("stopped", "stopped {after}"),
}
"""Of the statuses that are a fate; a run that goes on or is finished has none. Somebody paused or
stopped it: then `_by_whom` makes the sentence."""
_OF_ANOTHER: Mapping[Origin, str] = {
    Origin.RECORDED: "To go on, start the trainer from its own last checkpoint.",
    Origin.WATCHED: "Whether the training goes on is not known. To follow it, watch it again.",
    Origin.IMPORTED: "Import its files again.",
}


def fate_of(run: RunReader, name: str = "") -> Fate | None:
    """What became of a run; None while it goes on, and where it was trained to its end.

    Args:
        name: How a command names the run, as a shell reads it; empty for the path of the run.

    Raises:
        StoreError: the run cannot be read.
    """
    from echoscope.store.log.layout import Layout, shown_path
    from echoscope.store.steer.rewinds import last_of_line
    from echoscope.store.steer.settings import live_settings

    status, info = run.status(), run.info()
    if status.status not in _FATES:
        return None
    kind, sentence = _FATES[status.status]
    origin = origin_of(info.config)
    steps = live_settings(run).now.get("steps", info.config.get("steps"))
    name = name or shlex.quote(shown_path(run.path))
    sentences = _words(status, sentence, origin, _after(info.last_step, steps))
    way_on, command = _OF_ANOTHER.get(origin, ""), ""
    if kind == "paused":
        way_on, command = "Let the run go on; no step is lost.", f"echoscope ctl {name} resume"
        if status.asks:
            way_on = f"Let the guard rewind the run; `{command}` goes on without."
            command = f"echoscope ctl {name} rewind"
    elif kind == "silent":
        way_on = "Look at the trainer's own output: this run says nothing about why."
    elif origin is Origin.TRAINED and Layout(run.path).is_copy:
        way_on = "Resume the run where it was trained, or bring it home first."
        command = f"echoscope runs copy {name} {shlex.quote(f'runs/{run.path.name}')}"
    elif origin is Origin.EVALUATED:
        way_on, command = "Play what is left.", f"echoscope eval --resume {name}"
    elif status.is_rewound and (after := last_of_line(run.path)) != run.path:
        sentences += f" It goes on as `{after.name}`."
        way_on = f"Look at `{after.name}`."
        command = f"echoscope diagnose {shlex.quote(shown_path(after))}"
    elif origin is Origin.TRAINED:
        way_on, command = _resuming(run, info.last_step), f"echoscope train --resume {name}"
        if kind == "failed":
            way_on = f"Put right the error that the trainer printed. {way_on}"
    is_alarm = kind in ("paused", "stopped") and status.by.startswith(ALARM_AUTHOR)
    return Fate(
        kind="silent" if origin is Origin.WATCHED else kind,
        words=sentences,
        way_on=way_on,
        command=command,
        alarm=status.by.removeprefix(ALARM_AUTHOR) if is_alarm else "",
    )


def _resuming(run: RunReader, last_step: int) -> str:
    """From which checkpoint a run goes on, and what it plays again."""
    from echoscope.store.checkpoints import resume_step

    step = resume_step(run)
    start = f"the checkpoint of step {step}"
    if step is None:
        start = "the beginning, because there is no checkpoint"
    num_again = max(0, last_step - (step or 0))
    again = f"plays {counted(num_again, 'finished step')} again" if num_again else "repeats no step"
    return f"Resume the run: it goes on from {start}, and {again}."


def _words(status: RunStatus, sentence: str, origin: Origin, after: str) -> str:
    """One sentence: what happened, at which step, by whom."""
    if status.status is not Status.STALE and origin is Origin.WATCHED:
        return f"The watch of this run ended {after}."
    if status.status is not Status.STALE and origin is Origin.IMPORTED:
        return f"The import of this run broke off {after}."
    happened = sentence.format(after=after, clock=_clock(status.since))
    is_steered = status.status in (Status.PAUSED, Status.STOPPED)
    return _by_whom(status, happened) if is_steered else happened


def _by_whom(status: RunStatus, happened: str) -> str:
    """Names and reasons come from outside. An alarm's reason is its text, a paragraph."""
    did, _, when = happened.partition(" ")
    if not status.by:
        return f"The run was {happened}."
    if status.by.startswith(ALARM_AUTHOR):
        return f"{capitalised(author_words(status.by))} {did} the run {when}."
    reason = " ".join(status.reason.split()).rstrip(".")
    reason = reason if len(reason) <= MAX_REASON else f"{reason[:MAX_REASON]}..."
    who = " ".join(status.by.split())
    did = "rewound" if status.is_rewound else did
    return f"{who} {did} the run {when}{f': {reason}' if reason else ''}."


def _after(last_step: int, steps: object) -> str:
    if last_step <= 0:
        return "before its first step was finished"
    of = f" of {steps}" if isinstance(steps, int) and steps > last_step else ""
    return f"after step {last_step}{of}"


def _clock(seconds: float | None) -> str:
    """Local date and time: a verdict is read later than it is made, so no age is said."""
    if seconds is None:
        return "an unknown time"
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))
