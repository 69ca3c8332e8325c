"""Do alarms come later when information is measured less often? Over the recorded runs.

The recorded runs measured I(X;Z) at every third step. Here they are judged again three times, with
those measurements only that a schedule would have made: at a fixed interval of six steps, which is
about what the demo had when its budget was 5 %; at a fixed interval of `--calm` steps; and with the
schedule of the monitor, at that interval while nothing changes and at six steps while a sign shows
(`diagnostics/measure/costs.py`).

    python benchmarks/measurement_schedule.py [--calm 20] [--json]
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from common import read_options

from echoscope.diagnostics.bench.harness import SMALL_RUNS, LabelledRun, load_curves
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.measure.costs import Schedule, shows_sign
from echoscope.store.records import AlarmSeverity, AlarmState

EVERY = 6
"""Steps between two measurements, at least: a multiple of the three of the recordings."""
INFORMATION = ("info/", "collapse/", "collapse_first_turn_sample/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run, judged with fewer measurements."""

    num_steps: int
    measured: tuple[int, ...]
    alarms: Mapping[str, int]
    """First step at which a rule warned or worse, and `RULE, critical` at which it was critical."""
    verdict: tuple[str, ...]
    """State and kinds of collapse in the end."""


def watch(run: LabelledRun, *, calm: float, is_adaptive: bool) -> Watched:
    """Judge a run with the measurements that a schedule makes."""
    diagnosis, schedule = Diagnosis(), Schedule()
    measured, alarms, num_steps = [], dict[str, int](), 0
    for step, values in run.table.rows():
        num_steps += 1
        is_there = any(k.startswith(INFORMATION) and math.isfinite(v) for k, v in values.items())
        is_urgent = is_adaptive and shows_sign(diagnosis.engine.channels)
        is_due = is_there and schedule.is_due(step, EVERY, is_urgent=is_urgent)
        if is_due:
            measured.append(step)
            schedule = schedule.tried(step).paid(calm, 1.0)
        kept = {k: v for k, v in values.items() if is_due or not k.startswith(INFORMATION)}
        for event in diagnosis.observe(step, kept):
            if event.state is AlarmState.RAISED and event.severity is not AlarmSeverity.INFO:
                alarms.setdefault(event.rule, step)
                if event.severity is AlarmSeverity.CRITICAL:
                    alarms.setdefault(f"{event.rule}, critical", step)
    verdict = diagnosis.verdict()
    return Watched(
        num_steps=num_steps,
        measured=tuple(measured),
        alarms=alarms,
        verdict=(verdict.state.value, *verdict.kinds),
    )


def differences(before: Mapping[str, Watched], after: Mapping[str, Watched]) -> list[str]:
    """Alarms with another date, and verdicts that differ, in words."""
    out = []
    for name, old in before.items():
        new = after[name]
        for rule in dict.fromkeys([*old.alarms, *new.alarms]):
            dates = old.alarms.get(rule), new.alarms.get(rule)
            if dates[0] != dates[1]:
                dates_text = " -> ".join(
                    "never" if date is None else f"step {date}" for date in dates
                )
                out.append(f"{name}: {rule}: {dates_text}")
        if old.verdict != new.verdict:
            out.append(f"{name}: verdict {' '.join(old.verdict)} -> {' '.join(new.verdict)}")
    return out


def share(rows: Mapping[str, Watched], prefix: str = "") -> float:
    """Steps with a measurement over all steps, of the runs whose name begins so."""
    some = [row for name, row in rows.items() if name.startswith(prefix)]
    return sum(len(row.measured) for row in some) / sum(row.num_steps for row in some)


def main() -> None:
    arguments = read_options(__doc__, calm=(20.0, "steps whose budget one costs"), json=False)
    runs = load_curves(SMALL_RUNS)
    calm = arguments.calm
    plans = {
        f"every {EVERY} steps": (float(EVERY), False),
        f"every {calm:g} steps": (calm, False),
        f"every {calm:g} steps, {EVERY} while a sign shows": (calm, True),
    }
    rows = {
        plan: {run.name: watch(run, calm=steps, is_adaptive=adapts) for run in runs}
        for plan, (steps, adapts) in plans.items()
    }
    first = next(iter(rows.values()))
    out = {
        plan: {
            "measured share of steps": share(some),
            "of healthy runs": share(some, "healthy"),
            "alarms": sum(len(row.alarms) for row in some.values()),
            "differences from the first plan": differences(first, some),
        }
        for plan, some in rows.items()
    }
    if arguments.json:
        print(json.dumps({"runs": len(runs), "plans": out}))
        return
    print(f"{len(runs)} recorded runs")
    for plan, facts in out.items():
        print(f"{plan}:")
        for name, value in facts.items():
            if isinstance(value, list):
                print(f"  {name}: {len(value)}", *value, sep="\n    ")
            else:
                print(f"  {name}: {value:.3g}")


if __name__ == "__main__":
    main()
