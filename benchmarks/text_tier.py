"""What reading the text costs (tier 1 of the diagnostics), as a share of the demo's step time.

Trains the demo for a few steps, then measures every step's trajectories again with the default
settings. Also: reasonings of a thousand characters, as large models write them, and what reading
100,000 stored trajectories one step at a time comes to. With `--run PATH` a recorded run is read
instead of training.

    python benchmarks/text_tier.py [--steps 12] [--run PATH] [--json]
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from common import describe_machine, print_json, read_options, seconds_of, temporary_folder
from trajectories import make_trajectory

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.config import TextConfig
from echoscope.diagnostics.measure.text.measures import text_metrics
from echoscope.store.records import Split, Trajectory, Turn

REPEATS = 3
PROSE = (
    "the a box goal target wall agent should move push up down left right because then first next "
    "so if when blocked free adjacent corner careful plan step after before reach toward away from "
    "think about maybe clearly observation shows row column two three one position now must avoid"
)


def train_demo(steps: int, path: Path) -> None:
    overrides = [f"steps={steps}", "envs.eval=[]", "probe.every=0", "checkpoint.every=0"]
    start(load_config("demo", overrides=overrides), path, SilentEvents())


def seconds_to_measure(trajectories: list[Trajectory]) -> float:
    return seconds_of(lambda: text_metrics(trajectories, np.random.default_rng(0)), REPEATS)


def long_trajectories(num_chars: int) -> list[Trajectory]:
    """64 episodes of five turns with random prose of the given length in every turn."""
    rng = np.random.default_rng(0)
    vocabulary = PROSE.split()

    def turn(index: int) -> Turn:
        text = " ".join(rng.choice(vocabulary, num_chars // 5))[:num_chars]
        response = f"{text}</think><answer>up</answer>"
        return Turn(
            index=index,
            observation="# # #\n# _ #\n# P #",
            response=response,
            reasoning_chars=(0, len(text)),
            actions=(str(rng.choice(["up", "down", "left", "right"])),),
        )

    return [
        make_trajectory(
            *(turn(k) for k in range(5)),
            index=index,
            group_index=index // 8,
            sibling_index=index % 8,
            tag="prose",
            env_seed=index // 8,
            prompt_key=f"{index // 8:016x}",
        )
        for index in range(64)
    ]


def measure(path: Path) -> dict[str, float]:
    config = TextConfig()
    reader = open_run(path)
    steps, step_s = reader.metrics("time/step_s", phase="train")
    costs = [
        seconds_to_measure(
            [t for t in reader.trajectories_of_step(int(step)) if t.split is Split.TRAIN]
        )
        for step in steps
    ]
    cost, whole = statistics.mean(costs), statistics.median(step_s.tolist())
    return {
        "num_steps": float(len(costs)),
        "step_s": whole,
        "measurement_s": cost,
        "every": float(config.every),
        "share_of_step": cost / config.every / whole,
        "long_measurement_s": seconds_to_measure(long_trajectories(1000)),
        "per_100k_trajectories_s": cost * 100_000 / 64,
    }


def main() -> None:
    arguments = read_options(__doc__, steps=12, run=Path, json=False)
    with temporary_folder() as name:
        path = arguments.run
        if path is None:
            path = name / "run"
            train_demo(arguments.steps, path)
        result = measure(path)
    if arguments.json:
        print_json(**result)
        return
    print(describe_machine())
    print(
        f"step {result['step_s']:.2f} s (median); one measurement "
        f"{result['measurement_s'] * 1e3:.1f} ms, every {result['every']:.0f} steps: "
        f"{result['share_of_step']:.2%} of step time"
    )
    print(
        f"reasonings of 1,000 characters: {result['long_measurement_s'] * 1e3:.0f} ms; "
        f"100,000 trajectories, all steps: {result['per_100k_trajectories_s']:.0f} s"
    )


if __name__ == "__main__":
    main()
