"""What became of a run besides its curves: crashed, paused, stopped, failed or silent."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from echoscope.store.records import ALARM_AUTHOR
from echoscope.store.status import Origin, RunStatus, Status, origin_of
from echoscope.text.amounts import counted

from ..claims import Fate

if TYPE_CHECKING:
    from echoscope.store.reader import RunReader

EARLY_STOPPING = "early_stopping"
"""How a run that stops by its own setting names itself."""
MAX_REASON = 160
"""Characters of a reason that a sentence shows."""
_KINDS: Mapping[Status, Literal["crashed", "paused", "stopped", "silent", "failed"]] = {
    Status.CRASHED: "crashed",
    Status.PAUSED: "paused",
    Status.STOPPED: "stopped",
    Status.INTERRUPTED: "stopped",
    Status.FAILED: "failed",
    Status.STALE: "silent",
}
"""Of the statuses that are a fate; a run that goes on or is finished has none."""


def fate_of(run: RunReader, name: str = "") -> Fate | None:
    """What became of a run; None while it goes on, and where it was trained to its end.

    Args:
        name: How a command names the run, as a shell reads it; empty for the path of the run.

    Raises:
        StoreError: the run cannot be read.
    """
    from echoscope.store.log.layout import shown_path
    from echoscope.store.steer.settings import live_settings

    status, info = run.status(), run.info()
    kind = _KINDS.get(status.status)
    if kind is None:
        return None
    origin = origin_of(info.config)
    steps = live_settings(run).now.get("steps", info.config.get("steps"))
    words = _words(status, origin, _after(info.last_step, steps))
    name = name or shlex.quote(shown_path(run.path))
    way_on, command = _OF_ANOTHER.get(origin, ""), ""
    if kind == "paused":
        way_on, command = "Let the run go on; no step is lost.", f"echoscope ctl {name} resume"
    elif kind == "silent":
        way_on = "Look at the trainer's own output: this run says nothing about why."
    elif status.by == EARLY_STOPPING:
        way_on = ""
    elif origin is Origin.TRAINED:
        way_on, command = _resuming(run, info.last_step), f"echoscope train --resume {name}"
        if kind == "failed":
            way_on = f"Put right the error that the trainer printed. {way_on}"
    is_alarm = kind in ("paused", "stopped") and status.by.startswith(ALARM_AUTHOR)
    return Fate(
        kind="silent" if origin is Origin.WATCHED else kind,
        words=words,
        way_on=way_on,
        command=command,
        alarm=status.by.removeprefix(ALARM_AUTHOR) if is_alarm else "",
    )


_OF_ANOTHER = {
    Origin.RECORDED: "To go on, start the trainer from its own last checkpoint.",
    Origin.WATCHED: "Whether the training goes on is not known. To follow it, watch it again.",
    Origin.IMPORTED: "Import its files again.",
}


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


def _words(status: RunStatus, origin: Origin, after: str) -> str:
    """One sentence: what happened, at which step, by whom. Names and reasons come from outside."""
    found = status.status
    if found is Status.STALE:
        return f"The run is silent: nothing has come since {_clock(status.since)} ({after})."
    if origin is Origin.WATCHED:
        return f"The watch of this run ended {after}."
    if origin is Origin.IMPORTED:
        return f"The import of this run broke off {after}."
    if found is Status.CRASHED:
        return f"The run crashed {after}: its process ended without closing it."
    if found is Status.FAILED:
        return f"The run failed {after}: an error ended it."
    if found is Status.INTERRUPTED:
        return f"The run was interrupted {after}."
    if found is Status.PAUSED:
        did, when = "paused", f"{after} ({_clock(status.since)})"
    else:
        did, when = "stopped", after
    if not status.by:
        return f"The run was {did} {when}."
    if status.by.startswith(ALARM_AUTHOR):  # its reason is the text of the alarm, a paragraph
        return f"The alarm {status.by.removeprefix(ALARM_AUTHOR)} {did} the run {when}."
    who = "Early stopping" if status.by == EARLY_STOPPING else " ".join(status.by.split())
    return f"{who} {did} the run {when}{_because(status.reason)}."


def _because(reason: str) -> str:
    words = " ".join(reason.split()).rstrip(".")
    cut = words if len(words) <= MAX_REASON else f"{words[:MAX_REASON]}..."
    return f": {cut}" if cut else ""


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
