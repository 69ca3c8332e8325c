"""Distances and persistence of the alarm channels, tuned on even seeds and reported on odd ones.

Synthetic runs of seeds that the bench does not report, and the recorded small runs. A coordinate
sweep over factors on the channels' distances (`tuning.py`): false critical alarms
first, then collapses called in time, then lead. With --curves, labelled runs of others are a gate:
no value is kept that calls fewer of them in time, with less lead, fewer kinds right or more false
alarms, at these distances or at ones a tenth smaller. It changes nothing: it says what it found,
and whether the defaults should change.

    python benchmarks/tune_alarms.py [--seeds 12] [--passes 1] [--curves DIR] [--json]
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from common import describe_machine, read_options
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tuning import MARGIN, Setting, Sweep, Tuned, split, tune

from echoscope.diagnostics.bench.harness import load_curves
from echoscope.diagnostics.bench.report import BenchReport, made_set, recorded_set, report_of


def is_as_good(new: BenchReport, old: BenchReport) -> bool:
    """Nothing that is promised got worse."""
    new_verdict, other = new.verdict, old.verdict
    return (
        new_verdict.num_false <= other.num_false
        and new_verdict.num_in_time >= other.num_in_time
        and new_verdict.median_lead >= other.median_lead
        and new.num_kind_right >= old.num_kind_right
    )


class Gate:
    """Lets through what does no harm to labelled runs of others."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._present = [self._report({}, margin) for margin in (1.0, MARGIN)]

    def _report(self, setting: Setting, margin: float) -> BenchReport:
        return report_of("curves", self._sweep.judged(setting, margin=margin), beside=False)

    def __call__(self, setting: Setting) -> bool:
        plain, close = self._present
        if not is_as_good(self._report(setting, 1.0), plain):
            return False
        return self._report(setting, MARGIN).verdict.num_false <= close.verdict.num_false


def tuned_on(sweep: Sweep, passes: int, gate: Callable[[Setting], bool]) -> Tuned:
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("settings tried", total=None)
        return tune(
            sweep,
            passes=passes,
            gate=gate,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def table_of(reports: Sequence[tuple[str, str, BenchReport]]) -> Table:
    table = Table(
        "runs", "thresholds", "called in time", "kind right", "lead", "onset error",
        "false critical", "healthy steps", box=None,
    )  # fmt: skip
    for runs, thresholds, report in reports:
        verdict = report.verdict
        table.add_row(
            runs,
            thresholds,
            f"{verdict.num_in_time} of {verdict.num_collapsed}",
            str(report.num_kind_right),
            f"{verdict.median_lead:g}",
            f"{verdict.median_onset_error:g}",
            str(verdict.num_false),
            str(verdict.num_healthy_steps),
        )
    return table


def main() -> None:
    args = read_options(
        __doc__,
        seeds=(12, "synthetic runs of every kind, both halves"),
        passes=(1, "through all knobs"),
        curves=(Path, "labelled runs of others, as a gate"),
        json=False,
    )
    started = time.process_time()
    even, odd = split([*made_set(range(args.seeds)), *recorded_set("small")])
    sets = {"even seeds (tuned on)": Sweep(even), "odd seeds": Sweep(odd)}
    if args.curves:
        sets["curves of others"] = Sweep(load_curves(args.curves))
    gate = Gate(sets["curves of others"]) if args.curves else lambda _: True
    tuned = tuned_on(sets["even seeds (tuned on)"], args.passes, gate)
    settings: dict[str, Setting] = {"present": {}, "tuned": tuned.setting}
    reports = [
        (runs, name, report_of(runs, sweep.judged(setting), beside=False))
        for runs, sweep in sets.items()
        for name, setting in settings.items()
    ]
    by_place = {(runs, name): report for runs, name, report in reports}
    is_better = bool(tuned.setting) and tuned.after.worth > tuned.before.worth
    holds = {name: is_as_good(by_place[name, "tuned"], by_place[name, "present"]) for name in sets}
    seconds = time.process_time() - started
    if args.json:
        print(json.dumps(_as_json(tuned, reports, is_better, holds, seconds), allow_nan=False))
        return
    console = Console(width=140, highlight=False)
    console.print(table_of(reports))
    turned = ", ".join(f"{name} {value:+g}" for name, value in tuned.setting.items()) or "nothing"
    console.print(f"\nturned: {turned}")
    console.print(f"better on the tuning half: {'yes' if is_better else 'no'}")
    for name, is_held in holds.items():
        console.print(f"no worse on {name}: {'yes' if is_held else 'no'}")
    adopt = is_better and all(holds.values())
    console.print("the defaults should " + ("change" if adopt else "stay as they are"))
    console.print(f"{len(tuned.tried) + 1} settings, {seconds:.0f} s; {describe_machine()}")


def _as_json(
    tuned: Tuned,
    reports: Sequence[tuple[str, str, BenchReport]],
    is_better: bool,
    holds: dict[str, bool],
    seconds: float,
) -> dict[str, Any]:
    return {
        "setting": dict(tuned.setting),
        "is_better": is_better,
        "no_worse": holds,
        "adopt": is_better and all(holds.values()),
        "reports": [
            {
                "runs": runs,
                "thresholds": name,
                "kind_right": report.num_kind_right,
                **report.verdict.to_json(),
            }
            for runs, name, report in reports
        ],
        "tried": [
            {
                "knob": knob,
                "value": value,
                "false_at_margin": measured.num_false_at_margin,
                **measured.scores.to_json(),
            }
            for knob, value, measured in tuned.tried
        ],
        "seconds": seconds,
        "machine": describe_machine(),
    }


if __name__ == "__main__":
    main()
