"""What `echoscope watch` shows: plain lines, or JSON lines."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from echoscope.diagnostics.catalogue import metric
from echoscope.diagnostics.read.wandb_address import is_address
from echoscope.store.query import metric_keys
from echoscope.text.amounts import fixed, memory_size

from .terminal import print_json, print_lines

if TYPE_CHECKING:
    from echoscope.diagnostics.judge.record import Verdict
    from echoscope.store.records import Alarm

SHOWN = (
    metric_keys.SUCCESS_RATE,
    metric_keys.RETURN_MEAN,
    metric_keys.GROUP_STD,
    metric_keys.ENTROPY,
    metric_keys.SAMPLED_TOKENS,
    metric_keys.REF_KL,
    "loss/total",
    metric_keys.GRAD_NORM,
    "text/template_match_frac",
)
"""The metrics that matter most, in this order; evaluations stand before them."""
MAX_SHOWN = 6


class LineView:
    """Plain lines: a step, a new state, an alarm, a message each."""

    def __init__(self, path: Path, run: Path) -> None:
        self._path, self._run = path, run
        self._read_at = 0.0
        self._state = ""

    def message(self, text: str) -> None:
        print_lines(text)

    def step(self, step: int, values: Mapping[str, float], verdict: Verdict) -> None:
        numbers = [f"{name} {value}" for name, value in of_step(values)]
        self.message(f"step {step:>5}  {'  '.join(numbers)}")
        if verdict.state.value != self._state:
            self._state = verdict.state.value
            self.message(f"{self._state}: {verdict.text.splitlines()[0]}")

    def alarms(self, alarms: Sequence[Alarm], verdict: Verdict) -> None:
        for alarm in alarms:
            text = " ".join(alarm.message.split())[:600]
            self.message(f"{alarm.severity.value} {alarm.rule} at step {alarm.step}: {text}")

    def looked(self, num_bytes_left: int) -> None:
        """After each look."""
        if num_bytes_left and time.monotonic() - self._read_at > 5:
            self._read_at = time.monotonic()
            self.message(f"reading: {memory_size(num_bytes_left)} left")

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


class JsonView(LineView):
    """One JSON object a line, on the standard output; messages on the error output."""

    def message(self, text: str) -> None:
        print_lines(text, err=True)

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


def of_step(values: Mapping[str, float]) -> list[tuple[str, str]]:
    """Names and values of the metrics that matter, as far as a step has them.

    >>> of_step({"policy/entropy": 0.51234, "x": 1.0})
    [('Policy entropy', '0.512')]
    """
    success = [k for k in values if k.startswith("eval/") and k.endswith("/success_rate")]
    keys = [key for key in (*success, *SHOWN) if math.isfinite(values.get(key, math.nan))]
    return [(metric(key).name, fixed(values[key])) for key in keys[:MAX_SHOWN]]
