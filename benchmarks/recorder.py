"""What recording costs the training loop: the same run with its store and without.

Runs are bit-identical, so step n does the same work in each; the runs alternate, and the medians of
the paired step times are compared. Recording includes the background thread's share of the machine.

    python benchmarks/recorder.py [--steps 15] [--rounds 3] [--json]
"""

from __future__ import annotations

import json
import os
import statistics
from typing import Any
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import describe_machine, read_options, temporary_folder

from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.records import StepMetrics
from echoscope.store.writer import RunWriter


class StepTimes(SilentEvents):
    """Keeps the seconds of every training step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def metrics(self, metrics: StepMetrics) -> None:
        if metrics.phase == "train":
            self.seconds.append(metrics.durations_s["time/step_s"])


def forget(*_: Any, **__: Any) -> None:
    """Take the place of writing."""


def measure(steps: int, *, is_recording: bool) -> list[float]:
    """Seconds of each step after the first two."""
    config = load_config(
        "demo", overrides=[f"steps={steps}", "envs.eval=[]", "probe.every=0", "checkpoint.every=0"]
    )
    events = StepTimes()
    with temporary_folder() as name:
        path = name / "run"
        if is_recording:
            start(config, path, events)
        else:
            silenced = {"commit_step": forget, "add_trajectories": forget}
            with patch.multiple(RunWriter, **silenced):
                start(config, path, events)
    return events.seconds[2:]


def main() -> None:
    arguments = read_options(__doc__, steps=15, rounds=3, json=False)
    without: list[list[float]] = []
    recorded: list[list[float]] = []
    for _ in range(arguments.rounds):
        without.append(measure(arguments.steps, is_recording=False))
        recorded.append(measure(arguments.steps, is_recording=True))
    # The fastest of each step's rounds: what is left of it is work, not the neighbours' load.
    ratios = [
        min(r) / min(w)
        for r, w in zip(zip(*recorded, strict=True), zip(*without, strict=True), strict=True)
    ]
    result = {
        "machine": describe_machine(),
        "steps": arguments.steps,
        "rounds": arguments.rounds,
        "step_p50_s": round(statistics.median(map(min, zip(*recorded, strict=True))), 4),
        "overhead_frac": round(statistics.median(ratios) - 1, 4),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    print(result["machine"])
    print(
        f"demo, {arguments.steps} steps, {arguments.rounds} rounds: step p50 "
        f"{result['step_p50_s']} s; recording adds {100 * result['overhead_frac']:.1f} %"
    )


if __name__ == "__main__":
    main()
