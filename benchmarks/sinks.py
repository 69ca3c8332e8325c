"""What a sink costs the trainer: time of a call, time of the copy, and memory.

python benchmarks/sinks.py
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

from common import temporary_folder

from echoscope.diagnostics.bench.synthetic_runs import make
from echoscope.diagnostics.judge.verdict import Diagnosis
from echoscope.diagnostics.sinks.mirror import Mirror
from echoscope.diagnostics.sinks.settings import SinksConfig
from echoscope.store.records import StepMetrics

STEPS, METRICS = 100, 370
"""A run of the recipe bandit logs so many."""
ON = {"wandb": "offline", "tensorboard": True, "trackio": True}


def resident_mb() -> float:
    """Memory of this process and of those that it has started, in MB (10^6 bytes)."""
    total = 0.0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, rest = stat.read_text().partition(" ")[0], stat.read_text().rpartition(")")[2]
        except OSError:
            continue
        fields = rest.split()
        if os.getpid() in (int(pid), int(fields[1])):
            total += int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return total


def main() -> None:
    rows = list(make("template_collapse", 0).table.rows())[:STEPS]
    more = {f"made/metric_{number}": 0.5 for number in range(METRICS - len(rows[0][1]))}
    print(f"{STEPS} steps of about {METRICS} metrics, load {os.getloadavg()[0]:.1f}")
    for name, setting in ON.items():
        with temporary_folder() as folder:
            path = folder / "run"
            path.mkdir()
            config = SinksConfig.model_validate({name: setting})
            mirror = Mirror(config, run_path=path, run_config={}, on_message=print)
            diagnosis, calls = Diagnosis(run_id="run"), []
            before_mb, begun = resident_mb(), time.perf_counter()
            for step, values in rows:
                alarms = diagnosis.observe(step, values)
                metrics = StepMetrics(
                    run_id="run",
                    step=step,
                    phase="train",
                    policy_version=0,
                    wall_time=0.0,
                    values=values | more,
                )
                before = time.perf_counter()
                mirror.step([metrics], alarms=alarms, verdict=diagnosis.verdict)
                calls.append(time.perf_counter() - before)
            while mirror.num_waiting:
                time.sleep(0.01)
            taken, memory = time.perf_counter() - begun, resident_mb() - before_mb
            mirror.close("finished")
            print(
                f"{name}: a call {1e6 * statistics.median(calls):.0f} us (median), "
                f"{1e6 * max(calls):.0f} us (longest); copied in {taken:.1f} s, with the start; "
                f"{memory:.0f} MB more"
            )


if __name__ == "__main__":
    main()
