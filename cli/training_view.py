"""The terminal view of a training run: live with rich, or a line a step."""

from __future__ import annotations

import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from echoscope.core.config.beside_training import BranchedFrom, GivenTreatment
from echoscope.core.config.settings import RunConfig
from echoscope.diagnostics.catalogue import metric
from echoscope.store.query.metric_keys import ENTROPY, GROUP_STD, RETURN_MEAN, SUCCESS_RATE
from echoscope.store.reader import open_run
from echoscope.store.records import StepMetrics
from echoscope.store.steer.steering import override_words
from echoscope.text.amounts import clock, duration_in_two_units, fixed, percent

from .terminal import grid_of_pairs

LOST = 0.5
"""Share of the best evaluation below which a run has lost its success."""
KEPT = "selection/num_groups_kept"
SPEED = "time/tokens_per_s"
SHOWN = {
    SUCCESS_RATE: ("success", 2),
    RETURN_MEAN: ("return", 3),
    GROUP_STD: ("reward std", 3),
    ENTROPY: ("entropy", 3),
}
"""Metric -> its name in a line, and its digits; the panel has the names of the catalogue."""
QUIET_S = 10.0
"""Seconds without a line after which one says what goes on, where there is no live view."""
PHASES = {
    "rollout": "sampling",
    "annotate": "scoring what was sampled",
    "evaluate": "evaluation",
    "checkpoint": "writing a checkpoint",
}
"""Phases of a step that read better under another name."""
SPARKS = "▁▂▃▄▅▆▇█"


def spark_line(values: Sequence[float], width: int = 40) -> str:
    """The last `width` values in [0, 1] as bars; NaN as a gap.

    >>> spark_line([0.0, 0.5, 1.0])
    '▁▅█'
    """
    out = ""
    for value in values[-width:]:
        level = 0 if math.isnan(value) else round(min(max(value, 0.0), 1.0) * (len(SPARKS) - 1))
        out += " " if math.isnan(value) else SPARKS[level]
    return out


class TerminalEvents:
    """Keeps what the view shows. Prints lines itself when there is no live view."""

    def __init__(
        self,
        config: RunConfig,
        console: Console,
        *,
        is_live: bool,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._console = console
        self._is_live = is_live
        self._now = now
        self._phase, self._step, self._said_pause = "starting", 0, ""
        self._phase_began = self._last_line_s = now()
        self._progress: dict[str, tuple[int, int]] = {}
        self._steps: list[StepMetrics] = []
        self._evaluations: list[StepMetrics] = []
        self._started = time.monotonic()
        self._bar = Progress(
            TextColumn("[bold]{task.description}"), BarColumn(None), MofNCompleteColumn()
        )
        self._task = self._bar.add_task("step", total=config.steps)

    def message(self, text: str) -> None:
        self._last_line_s = self._now()
        try:
            self._console.print(escape(text), highlight=False, soft_wrap=True)
        except OSError:
            self._console = _to_nowhere(self._console)

    def phase(self, step: int, name: str) -> None:
        self._phase, self._step, self._progress = name, step, {}
        self._phase_began = self._now()
        if not self._is_live and self._is_paused:
            text = f"paused after step {step} {name.removeprefix('paused ')}"
            if text != self._said_pause:  # a checkpoint is no end of a pause
                self.message(text)
            self._said_pause = text
        elif name != "checkpoint":
            self._said_pause = ""

    @property
    def _is_paused(self) -> bool:
        return self._phase.startswith("paused")

    def progress(self, done: int, of: int, what: str) -> None:
        self._progress[what] = (done, of)

    def say_alive(self) -> None:
        """A line of what goes on, where there is no live view and nothing was said for long."""
        is_quiet = self._now() - self._last_line_s >= QUIET_S
        if is_quiet and not self._is_live and not self._is_paused:
            took = duration_in_two_units(self._now() - self._phase_began)
            before = f"step {self._step:>4}  " if self._step else ""
            self.message(f"{before}{self._doing()} ({took} so far)")

    def _doing(self) -> str:
        """`sampling, 3 of 16 episodes`: the phase, and how far it has come."""
        parts = [PHASES.get(self._phase, self._phase)]
        told = list(self._progress.items())  # other threads add to it
        parts += [f"{done} of {of} {what}" for what, (done, of) in told if of]
        return ", ".join(parts)

    def metrics(self, metrics: StepMetrics) -> None:
        if metrics.phase == "eval":
            kind, name = ("eval", "evaluation") if _tags(metrics, "eval") else ("probe", "probe")
            if kind == "eval":
                self._evaluations.append(metrics)
            self.message(f"step {metrics.step:>4}  {name}  {_rates(metrics, kind)}")
            return
        self._steps.append(metrics)
        self._bar.update(self._task, completed=metrics.step)
        if not self._is_live:
            self.message(self._line(metrics))

    def _line(self, metrics: StepMetrics) -> str:
        values = metrics.values
        return (
            f"step {metrics.step:>4}/{self._config.steps}"
            + "".join(
                f"  {short} {fixed(values[key], digits)}" for key, (short, digits) in SHOWN.items()
            )
            + f"  kept {values[KEPT]:.0f}/{self._num_groups(values):.0f}"
            f"  {metrics.durations_s[SPEED]:.0f} tok/s"
            f"  left {clock(self._seconds_left())}"
        )

    def _num_groups(self, values: Mapping[str, float]) -> float:
        """Groups that the step played, those of further rounds included."""
        of_a_round = sum(group.groups for group in self._config.envs.train)
        return of_a_round * values.get("rollout/num_rounds", 1.0)

    def _seconds_left(self) -> float:
        if not self._steps:
            return 0.0
        recent = [m.durations_s["time/step_s"] for m in self._steps[-10:]]
        return sum(recent) / len(recent) * max(0, self._config.steps - self._steps[-1].step)

    def __rich__(self) -> RenderableType:
        cells: list[tuple[str, RenderableType]] = []
        if self._steps:
            now, values = self._steps[-1], self._steps[-1].values
            texts = {key: fixed(values[key], digits) for key, (_, digits) in SHOWN.items()}
            success = spark_line([m.values[SUCCESS_RATE] for m in self._steps])
            texts[SUCCESS_RATE] = f"[bold]{texts[SUCCESS_RATE]}[/]  {success}"
            texts[KEPT] = f"{values[KEPT]:.0f} of {self._num_groups(values):.0f}"
            texts[SPEED] = f"{now.durations_s[SPEED]:.0f} {metric(SPEED).unit}"
            cells = [(metric(key).name, text) for key, text in texts.items()]
            cells.append(("Elapsed", clock(time.monotonic() - self._started)))
            cells.append(("Left", clock(self._seconds_left())))
        table = grid_of_pairs(cells)
        if self._evaluations:
            table.add_row("Evaluation", escape(_rates(self._evaluations[-1], "eval")))
        body = Group(self._bar, table, f"[dim]{self._doing()} - Ctrl-C stops after this step[/]")
        return Panel(body, title=f"echoscope {escape(self._config.name)}", title_align="left")

    def summary(self, path: Path, status: str, treatments: Sequence[GivenTreatment] = ()) -> None:
        """What was learned, what was tried, where it is, and what to type next."""
        is_lost = False
        for tag in _tags(self._evaluations[0], "eval") if self._evaluations else []:
            key = f"eval/{tag}/success_rate"
            first, last = self._evaluations[0], self._evaluations[-1]
            best = max(self._evaluations, key=lambda metrics: metrics.values[key])
            if first.step != last.step:
                self.message(
                    f"{tag}: success {_rate(first, 'eval', tag)} before, "
                    f"{_rate(last, 'eval', tag)} after {last.step} steps, on "
                    f"{first.values[f'eval/{tag}/num_tasks']:.0f} evaluation tasks"
                )
            end, peak = last.values[key], best.values[key]
            if end < LOST * peak or not peak:
                is_lost = True
                than = f"best {percent(peak)} (step {best.step})"
                self.message(
                    f"{tag}: the run ended at {percent(end)} success, "
                    + (than if peak else "as at every evaluation")
                )
        for number, treatment in enumerate(treatments, 1):
            pairs = " ".join(override_words(treatment.as_typed))
            self.message(f"treatment {number}: from checkpoint {treatment.checkpoint} with {pairs}")
        self.message(f"run {status}: {path}")
        typed = shlex.quote(str(path))
        further = f" steps={2 * self._config.steps}" if status == "finished" else ""
        why = "why, and what to do" if is_lost else "is it healthy, and what to do"
        lines = [
            "next:",
            f"  echoscope diagnose {typed}    # {why}",
            f"  echoscope dashboard {typed}    # its curves and episodes, in a browser",
            f"  echoscope runs show {typed}",
        ]
        if not is_lost:
            lines.append(f"  echoscope train --resume {typed}{further}")
        for line in lines:
            self.message(line)


def treatments_of(path: Path) -> list[GivenTreatment]:
    """What rewinds gave the run and those that it goes on from."""
    origin = open_run(path).info().config.get("branched_from")
    return BranchedFrom.model_validate(origin).treatments if origin else []


class _TrainingConsole(Console):
    """Leaves a closed pipe to whoever prints; rich itself would end the process."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def _to_nowhere(console: Console) -> Console:
    """The descriptor itself goes to the null device, or Python would fail again as it exits."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2 if console.stderr else 1)
    os.close(nowhere)
    return _TrainingConsole(stderr=console.stderr)


def _tags(metrics: StepMetrics, kind: str) -> list[str]:
    """Tags of an evaluation (`eval`) or a probe (`probe`)."""
    return [
        key.removeprefix(f"{kind}/").removesuffix("/success_rate")
        for key in metrics.values
        if key.startswith(f"{kind}/") and key.endswith("/success_rate")
    ]


def _rate(metrics: StepMetrics, kind: str, tag: str) -> str:
    """`43.0 % [36.3, 49.9]`: the rate with its 95 % interval."""
    rate, low, high = (
        percent(metrics.values[f"{kind}/{tag}/success_rate{end}"], 1)
        for end in ("", "_low", "_high")
    )
    return f"{rate} [{low.removesuffix(' %')}, {high.removesuffix(' %')}]"


def _rates(metrics: StepMetrics, kind: str) -> str:
    return "  ".join(f"{tag} {_rate(metrics, kind, tag)}" for tag in _tags(metrics, kind))


@contextmanager
def _heartbeat(beat: Callable[[], None]) -> Iterator[None]:
    """Call it every second beside the block: whatever the block does takes as long as it takes."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(1.0):
            beat()

    thread = threading.Thread(target=run, name="echoscope-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


@contextmanager
def watch(config: RunConfig, *, is_live: bool, to_stderr: bool = False) -> Iterator[TerminalEvents]:
    """Show a run's progress while the block runs, on stdout unless that is for a machine."""
    console = _TrainingConsole(stderr=to_stderr)
    events = TerminalEvents(config, console, is_live=is_live)
    if not is_live:
        with _heartbeat(events.say_alive):
            yield events
        return
    with Live(events, console=console, refresh_per_second=4):
        yield events
