"""What `echoscope watch` shows: a live panel, plain lines, or JSON lines."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.text.amounts import clock, fixed, memory_size

from .terminal import grid_of_pairs, output_console, print_json, printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.store.records import Alarm
    from echoscope.watch.watching import Watch

SHOWN = (
    "rollout/success_rate",
    "reward/return_mean",
    "reward/group_std_mean",
    "policy/entropy",
    "rollout/num_sampled_tokens_mean",
    "policy/ref_kl",
    "loss/total",
    "optim/grad_norm",
    "text/template_match_frac",
)
"""The metrics that matter most, in this order; evaluations stand before them."""
MAX_SHOWN = 6
MAX_LINES = 8
"""Alarms and messages in the panel."""
_STYLES = {"orange": "yellow", "gray": "dim"}
"""What a terminal calls the colours of the dashboard that it has no name for."""


class View:
    """Plain lines: a step, an alarm, a message each."""

    def __init__(self, path: Path, run: Path) -> None:
        self.watch: Watch | None = None
        self._path, self._run = path, run
        self._read_at = 0.0

    def message(self, text: str) -> None:
        typer.echo(printable(text))

    def link(self, text: str) -> None:
        self.message(text)

    def step(self, step: int, values: Mapping[str, float], verdict: Verdict) -> None:
        shown = [f"{name} {value}" for name, value in of_step(values)]
        self.message(f"step {step:>5}  {'  '.join(shown)}")

    def alarms(self, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        for alarm in alarms:
            self.message(alarm_words(alarm))

    def looked(self) -> None:
        """After each look."""
        if self.watch is None or not self.watch.num_bytes_left:
            return
        if time.monotonic() - self._read_at > 5:
            self._read_at = time.monotonic()
            self.message(f"reading: {memory_size(self.watch.num_bytes_left)} left")

    def nothing(self) -> None:
        way_out = (
            "the server did not answer, or the run has no row yet. Try again; without --once the "
            "watch waits for rows"
            if is_address(self._path)
            else "`echoscope watch --help` says what can be watched"
        )
        self.message(f"no step was read from {self._path}, so no run was written: {way_out}")

    def end(self, verdict: Verdict) -> None:
        from .diagnose import _show

        _show(verdict)
        self.message(f"run: {self._run}    next: echoscope diagnose {shlex.quote(str(self._run))}")


class JsonView(View):
    """One JSON object a line, on the standard output; messages on the error output."""

    def message(self, text: str) -> None:
        typer.echo(printable(text), err=True)

    def step(self, step: int, values: Mapping[str, float], verdict: Verdict) -> None:
        state, metrics = verdict.state.value, dict(values)
        print_json({"event": "step", "step": step, "state": state, "metrics": metrics})

    def alarms(self, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        for alarm in alarms:
            print_json(
                {
                    "event": "alarm",
                    "step": alarm.step,
                    "rule": alarm.rule,
                    "severity": alarm.severity.value,
                    "message": alarm.message,
                    "state": verdict.state.value,
                }
            )

    def end(self, verdict: Verdict) -> None:
        print_json({"event": "verdict", "run": str(self._run), **verdict.to_json()})


class LiveView(View):
    """A panel that is drawn again, for people at a terminal."""

    def __init__(self, path: Path, run: Path) -> None:
        super().__init__(path, run)
        self._step: tuple[int, Mapping[str, float]] | None = None
        self._steps: list[float] = []
        self._lines: list[tuple[str, str]] = []
        self._link = ""
        self._heard_at = time.monotonic()
        self._words: tuple[str, str] = ("", "")
        self.verdict: Verdict | None = None

    def message(self, text: str) -> None:
        self._lines = [*self._lines, (time.strftime("%H:%M:%S ") + printable(text), "dim")]
        self._lines = self._lines[-MAX_LINES:]

    def link(self, text: str) -> None:
        self._link = text

    def step(self, step: int, values: Mapping[str, float], verdict: Verdict) -> None:
        self._step, self._heard_at = (step, values), time.monotonic()
        self._words = verdict.state.value, verdict.text.partition("\n")[0]

    def alarms(self, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        from echoscope.dashboard.charts.theme import SEVERITY_TONES

        for alarm in alarms:
            tone = SEVERITY_TONES[alarm.severity]
            text = time.strftime("%H:%M:%S ") + alarm_words(alarm)
            self._lines = [*self._lines, (text, _STYLES.get(tone, tone))][-MAX_LINES:]

    def looked(self) -> None:
        """The panel shows how much is left."""

    def end(self, verdict: Verdict) -> None:
        """The lines of the end come below the panel; see `viewed`."""
        self.verdict = verdict

    def __rich__(self) -> RenderableType:
        from rich.console import Group
        from rich.panel import Panel
        from rich.text import Text

        from echoscope.dashboard.charts.theme import STATE_TONES

        parts: list[RenderableType] = []
        watch = self.watch
        if watch is not None and watch.num_bytes_left:
            parts.append(Text(f"reading: {memory_size(watch.num_bytes_left)} left", "dim"))
        if self._step is None:
            parts.append(Text("waiting for the first step", "dim"))
        else:
            step, values = self._step
            cells = [("Step", str(step)), *of_step(values)]
            parts.append(grid_of_pairs([(name, Text(value)) for name, value in cells]))
            state, sentence = self._words
            if state:
                tone = STATE_TONES[state]
                parts.append(Text(printable(sentence), f"bold {_STYLES.get(tone, tone)}"))
        parts += [Text(line, style) for line, style in self._lines]
        if self._link:
            parts.append(Text(self._link, "cyan", no_wrap=True, overflow="ignore"))
        quiet = clock(time.monotonic() - self._heard_at)
        waited = f"waiting for {quiet}" if self._step is None else f"last step {quiet} ago"
        parts.append(Text(f"{waited} - Ctrl-C ends the watch, not the trainer", "dim"))
        title = Text(f"echoscope watch {printable(str(self._path))}")
        return Panel(Group(*parts), title=title, title_align="left")


def of_step(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Names and values of the metrics that matter, as far as a step has them.

    >>> of_step({"policy/entropy": 0.51234, "x": 1.0})
    [('Policy entropy', '0.512')]
    """
    success = [k for k in values if k.startswith("eval/") and k.endswith("/success_rate")]
    keys = [key for key in (*success, *SHOWN) if math.isfinite(values.get(key, math.nan))]
    return [(metric(key).name, fixed(values[key])) for key in keys[:MAX_SHOWN]]


def alarm_words(alarm: Alarm) -> str:
    """An alarm in one line."""
    return printable(
        f"{alarm.severity.value} {alarm.rule} at step {alarm.step}: "
        f"{' '.join(alarm.message.split())[:600]}"
    )


@contextmanager
def viewed(path: Path, run: Path, *, is_json: bool, is_live: bool) -> Iterator[View]:
    """The view that fits, while the block runs."""
    if is_json:
        yield JsonView(path, run)
        return
    console = output_console()
    if not (is_live and console.is_terminal):
        yield View(path, run)
        return
    from rich.live import Live

    view = LiveView(path, run)
    with Live(view, console=console, refresh_per_second=2):
        yield view
    if view.verdict is not None:
        View(path, run).end(view.verdict)
