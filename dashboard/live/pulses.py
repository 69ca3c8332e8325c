"""A few bytes about a run that change when a page about it should, and lines on how it stands.

Nothing that a model or an environment wrote is in them. Lines change on a page by themselves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from urllib.parse import quote

from echoscope.diagnostics.judge.record import Verdict
from echoscope.store.reader import info_status
from echoscope.store.records import AlarmSeverity, rule_words
from echoscope.store.status import Origin, RunStatus, origin_of
from echoscope.store.steer.steering import standing
from echoscope.text.sentences import capitalised

from ..charts.theme import SEVERITY_TONES
from ..data import queries
from ..data.progress import pace, progress_words
from ..escaping import digest_of, visible
from ..page.problems import Problem
from ..words import Colour, status_words
from .scripts import component

EVERY_S = 1.0
"""Between two questions about a run that is live."""
Pulse = Mapping[str, str]
"""Name -> short text that changes with what it stands for; it tells nothing about the run.

`position` changes with what is acknowledged or asked for, `status` when the run begins or ends to
be live, `verdict` and `alarms` with what stands in them, `commands` with what was asked for and
answered, `checkpoints` and `keys` with the checkpoints and the metrics that there are.
"""
_digest = partial(digest_of, size=8)
_NAMES = ("position", "status", "verdict", "alarms", "commands", "checkpoints", "keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadgeText:
    """How something stands, in words."""

    text: str
    colour: Colour = "gray"
    """Of a badge."""


def address(run_id: str, what: str = "pulse") -> str:
    """Where a browser asks for the pulse of a run, its `tiles` or a `chart`."""
    return f"/api/runs/{quote(run_id, safe='')}/{what}"


def pulse(run_id: str) -> Pulse:
    """The pulse of a run; one that cannot be read has one, too. Cheap where nothing is new."""
    try:
        info, commands = queries.info(run_id), queries.commands(run_id)
        return {
            "position": mark(queries.position(run_id)),
            "status": _digest((info.status, info.attempt)),
            "verdict": verdict_mark(_verdict(run_id)),
            "alarms": _digest(
                [(a.alarm_id, a.step, a.severity, a.message) for a in queries.open_alarms(run_id)]
            ),
            "commands": _digest([(state.command.command_id, state.ack) for state in commands]),
            "checkpoints": _digest([saved.path for saved in queries.checkpoints(run_id)]),
            "keys": _digest(queries.metric_keys(run_id)),
        }
    except Problem as trouble:
        return dict.fromkeys(_NAMES, _digest(trouble.text))


def _verdict(run_id: str) -> Verdict | None:
    """The newest verdict, where somebody wanted one: for others a run is not judged."""
    if queries.known_verdict(run_id) is None:
        return None
    return queries.verdict(run_id, wait_s=0.0)


def verdict_mark(verdict: Verdict | None) -> str:
    """What a pulse calls a verdict."""
    if verdict is None or verdict.last_step is None:
        return _digest(None)
    return _digest((verdict.state, verdict.text, verdict.actions))


def mark(position: queries.Position) -> str:
    """What a pulse calls a position."""
    return _digest(position)


def lines(run_id: str) -> dict[str, BadgeText]:
    """What pages say of a run in a line; nothing of one that cannot be read."""
    try:
        return {name: line(run_id) for name, line in _LINES.items()}
    except Problem:
        return {}


def status_line(run_id: str) -> BadgeText:
    """Status and step."""
    info, now = queries.info(run_id), time.time()
    is_evaluation = origin_of(info.config) is Origin.EVALUATED  # its steps are none of a training
    last_step = -1 if is_evaluation else info.last_step
    line, colour = status_words(status(run_id), last_step, _steps(run_id), now)
    return BadgeText(text=line, colour=colour)


def progress(run_id: str) -> tuple[str, str]:
    """How far the run is, and how fast."""
    last_step, step_s = queries.info(run_id).last_step, pace(queries.step_table(run_id))
    return progress_words(status(run_id), step_s, last_step=last_step, steps=_steps(run_id))


def verdict_line(run_id: str) -> BadgeText:
    """How new the verdict is."""
    verdict = _verdict(run_id)
    if verdict is None or verdict.last_step is None:
        return BadgeText(text="")
    line = f"after step {verdict.last_step}"
    if not verdict.state.is_collapse:
        return BadgeText(text=line)  # the signals to watch stand beside it
    return BadgeText(text=f"{line}, confidence: {verdict.confidence}")


def alarm_line(run_id: str) -> BadgeText:
    """The worst open alarm that is more than information, by name; empty without one."""
    worst, *_ = [*queries.open_alarms(run_id), None]
    if worst is None or worst.severity is AlarmSeverity.INFO:
        return BadgeText(text="")
    return BadgeText(
        text=capitalised(rule_words(worst.rule)), colour=SEVERITY_TONES[worst.severity]
    )


def newest_line(run_id: str) -> BadgeText:
    """How far the run has come meanwhile."""
    return BadgeText(text=f"The newest step is {queries.info(run_id).last_step}.")


_LINES = {
    "status": status_line,
    "verdict": verdict_line,
    "newest": newest_line,
    "alarm": alarm_line,
}


def status(run_id: str) -> RunStatus:
    """How a run stands now."""
    info, commands = queries.info(run_id), queries.commands(run_id)
    step_s = pace(queries.step_table(run_id))
    return info_status(info, commands, step_s=step_s, now=time.time())


def _steps(run_id: str) -> int:
    """How many steps the run will take, as it is set now."""
    info, settings = queries.info(run_id), queries.current_settings(run_id)
    return standing(info, queries.commands(run_id), settings).steps


def show_line(run_id: str, name: str, *, every_s: float | None) -> None:
    """Show a line as it is now, and as it becomes: the browser puts in what a pulse says.

    Nothing is drawn again for it, so a step counter that moves costs a page nothing.

    Args:
        name: What a pulse calls it.
        every_s: Seconds between two questions; None where the line stays as it is.
    """
    data = {
        "kind": "badge" if name == "status" else "caption",
        "name": name,
        "line": asdict(_LINES[name](run_id)),
        "address": None if every_s is None else address(run_id),
        "every": EVERY_S if every_s is None else every_s,
    }
    component("pulse.js", "line")(key=f"line_{name}", data=json.dumps(data))


def bell(run_id: str) -> None:
    """A button that has the browser of whoever presses it tell of new alarms of a live run."""
    data = {
        "run": visible(run_id, 80),
        "alarm": alarm_line(run_id).text,
        "address": address(run_id),
        "every": EVERY_S,
        "always": True,
    }
    component("bell.js")(key="bell", data=json.dumps(data), width="content")
