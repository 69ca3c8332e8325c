"""What a notebook costs on a large run: seconds and memory of each answer.

    python benchmarks/notebook.py [--episodes 1000000]

Writes a run of one-turn episodes under a temporary folder, 10,000 a step. Then a process of its own
opens it with `echoscope.Run` for each answer, and says how long the answer took and how much memory
the process needed at most, beyond what it needed for imports.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
import warnings
from pathlib import Path

from common import (
    describe_machine,
    folder_bytes,
    markdown_table,
    memory_of,
    read_options,
    temporary_folder,
)

HOME = Path(__file__).parents[1]
sys.path.insert(0, str(HOME / "tests" / "shared"))

PER_STEP = 10_000
ANSWERS = {
    "card": "run._repr_html_()",
    "metrics()": "run.metrics()",
    "trajectories()": "run.trajectories()",
    "trajectories(where), few match": "run.trajectories('success and env_seed = 17')",
    "turns()": "run.turns()",
    "turns(where), on text": "run.turns(\"response like '%nothing%'\")",
    "plot('group_map')": "run.plot('group_map')",
}


def ask(path: str, expression: str) -> None:
    import plotly.graph_objects  # noqa: F401  not part of an answer

    import echoscope

    warnings.simplefilter("ignore")
    run = echoscope.Run(path)
    before, started = memory_of(), time.perf_counter()
    answer = eval(expression, {"run": run})
    took = time.perf_counter() - started
    rows = f"{len(answer):,}" if hasattr(answer, "columns") else ""
    print(f"{took:.1f} s | {(memory_of() - before) / 1e6:.0f} MB | {rows}")


def main() -> None:
    options = read_options(
        __doc__,
        episodes=1_000_000,
        ask={"nargs": 2, "metavar": ("RUN", "EXPRESSION"), "help": argparse.SUPPRESS},
    )
    if options.ask:
        ask(*options.ask)
        return
    from made_run import add_steps, open_writer

    with temporary_folder() as folder:
        path = folder / "large"
        steps = range(max(1, options.episodes // PER_STEP))
        text = "The goal lies up and to the right, and a hole is in the way, so I go around it. "
        started = time.perf_counter()
        with open_writer(path) as writer:
            add_steps(writer, path.name, steps, num_trajectories=PER_STEP, text=text)
        size = folder_bytes(path)
        print(describe_machine())
        print(
            f"{len(steps) * PER_STEP:,} episodes, {size / 1e6:.0f} MB, written in "
            f"{time.perf_counter() - started:.0f} s\n"
        )
        print(markdown_table(("answer", "time", "memory", "rows")))
        for name, expression in ANSWERS.items():
            command = [sys.executable, __file__, "--ask", str(path), expression]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"| {name} | {done.stdout.strip()} |", flush=True)


if __name__ == "__main__":
    main()
