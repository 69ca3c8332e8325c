"""Lines of text about a run that change by themselves: the browser puts in what a pulse says.

Nothing is drawn again for them, so a step counter that moves costs a page nothing.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Literal

from ..escaping import visible
from . import pulses
from .pulses import EVERY_S, Line, address
from .scripts import component

Kind = Literal["badge", "caption"]


def show(run_id: str, name: str, line: Line, *, kind: Kind, every_s: float | None) -> None:
    """Show a line as it is now, and as it becomes.

    Args:
        name: What a pulse calls it.
        every_s: Seconds between two questions; None where the line stays as it is.
    """
    data = {
        "kind": kind,
        "name": name,
        "line": asdict(line),
        "address": None if every_s is None else address(run_id),
        "every": EVERY_S if every_s is None else every_s,
    }
    component("pulse.js", "line")(key=f"line_{name}", data=json.dumps(data))


def bell(run_id: str) -> None:
    """A button that has the browser of whoever presses it tell of new alarms of a live run."""
    data = {
        "run": visible(run_id, 80),
        "alarm": pulses.alarm_line(run_id).text,
        "address": address(run_id),
        "every": EVERY_S,
        "always": True,
    }
    component("bell.js")(key="bell", data=json.dumps(data), width="content")
