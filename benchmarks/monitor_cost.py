"""What the monitor costs: a real run of the demo, and its own record of where the time went.

Shares are seconds of measuring over the seconds of all training steps of the same run, so that a
busy machine slows both; with `--processor-time` what others do does not count at all. Tier 1 is
rewards and text, tier 2 information and gradients. With `--ranks 2` two processes train, on a CPU
over gloo. They share the information measures and the gradient breakdown. Their processor seconds
are added up; without `--processor-time` the seconds are those of rank 0's clock.

    python benchmarks/monitor_cost.py [--steps 60] [--processor-time] [--ranks 2] [--run PATH]
        [--json]
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import psutil
from common import describe_machine, print_json, read_options, temporary_folder

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.diagnostics.monitor import (
    GRADIENT_PASSES,
    INFORMATION_PASSES,
    TRAINING_PASSES,
    Monitor,
)
from echoscope.store.records import Split

TIERS = {"tier 1": ("rewards", "text"), "tier 2": ("information", "gradients")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One measurement over a run."""

    name: str
    steps: tuple[int, ...]
    seconds: float
    """Mean of one."""
    share: float
    """Of training time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """All of it over one run."""

    num_steps: int
    step_s: float
    """Mean of a step without its measurements."""
    parts: tuple[Part, ...]
    judging: float
    """Share of training time."""
    total: float
    """Share of training time, judging included."""
    passes: dict[str, float]
    """Seconds of a measurement in passes, as the budget counts: a step is `TRAINING_PASSES` per
    token of its rollouts."""

    def tier(self, name: str) -> float:
        return sum(part.share for part in self.parts if part.name in TIERS[name])


@contextmanager
def processor_time(num_ranks: int) -> Iterator[None]:
    """Let every stopwatch of a run count processor seconds of this process and the other ranks."""
    others: list[psutil.Process] = []

    def clock() -> float:
        if len(others) < num_ranks - 1:
            others[:] = psutil.Process().children()
        return time.process_time() + sum(map(_spent, others))

    defaults = {"clock": clock if num_ranks > 1 else time.process_time}
    with (
        patch("time.perf_counter", defaults["clock"]),
        patch.dict(Monitor.__init__.__kwdefaults__, defaults),
    ):
        yield


def _spent(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:  # a rank that has ended, after the last step
        return 0.0
    return float(times.user + times.system)


def read(path: Path) -> Cost:
    reader = open_run(path)
    steps, whole = reader.metrics("time/step_s", phase="train")
    training = float(whole.sum())
    parts = []
    for name in [name for names in TIERS.values() for name in names]:
        measured_at, seconds = reader.metrics(f"time/diagnostics_{name}_s", phase="train")
        parts.append(
            Part(
                name=name,
                steps=tuple(int(step) for step in measured_at),
                seconds=float(seconds.mean()),
                share=float(seconds.sum()) / training,
            )
        )
    measured = float(reader.metrics("time/diagnostics_s", phase="train")[1].sum())
    total = float(reader.metrics("time/diagnostics_frac", phase="train")[1][-1])
    pure = training - measured
    return Cost(
        num_steps=len(steps),
        step_s=pure / len(steps),
        parts=tuple(parts),
        judging=total - measured / training,
        total=total,
        passes=_passes(path, {part.name: part for part in parts}, pure / len(steps)),
    )


def _passes(path: Path, parts: dict[str, Part], step_s: float) -> dict[str, float]:
    """What a token scored, and a token decomposed, cost in passes on this machine.

    Tokens are the longest prompt and its reply of each trajectory, as the monitor counts them.
    """
    reader = open_run(path)
    steps = reader.metrics("time/step_s", phase="train")[0][::10]
    sizes = [
        [
            max(len(turn.prompt_tokens) + len(turn.response_tokens) for turn in trajectory.turns)
            for trajectory in reader.trajectories_of_step(int(step))
            if trajectory.split is Split.TRAIN
        ]
        for step in steps
    ]
    tokens = float(np.mean([sum(row) for row in sizes]))
    seconds_per_pass = step_s / (TRAINING_PASSES * tokens)
    return {
        "tokens_of_a_step": tokens,
        "gradients_per_token": parts["gradients"].seconds / tokens / seconds_per_pass,
        "information_in_all": parts["information"].seconds / seconds_per_pass,
    }


def main() -> None:
    arguments = read_options(
        __doc__,
        steps=60,
        processor_time=(False, "of this run alone"),
        ranks=(1, "processes that train"),
        run=(Path, "a recorded run to read instead of training"),
        json=False,
    )
    with temporary_folder() as name:
        path = arguments.run
        if path is None:
            path = name / "run"
            sizes = [f"steps={arguments.steps}", f"trainer.ranks={arguments.ranks}"]
            config = load_config("demo", overrides=sizes)
            is_timed = arguments.processor_time
            with processor_time(arguments.ranks) if is_timed else nullcontext():
                start(config, path, SilentEvents())
        cost = read(path)
    if arguments.json:
        print_json(**asdict(cost))
        return
    print(describe_machine())
    print(f"{cost.num_steps} steps of {cost.step_s:.2f} s without measurements")
    for part in cost.parts:
        steps_text = ", ".join(map(str, part.steps[:6])) + (", ..." if len(part.steps) > 6 else "")
        print(
            f"  {part.name:12} {part.seconds * 1e3:7.1f} ms, {len(part.steps)} times "
            f"(steps {steps_text}): {part.share:.2%}"
        )
    for tier in TIERS:
        print(f"  {tier}: {cost.tier(tier):.2%} of training time")
    print(f"  judging: {cost.judging:.2%}; all: {cost.total:.2%}")
    print("  " + ", ".join(f"{key} {value:.4g}" for key, value in cost.passes.items()))
    print(
        f"  (budget: {GRADIENT_PASSES:g} passes per token decomposed, {INFORMATION_PASSES:g} per "
        "token scored)"
    )


if __name__ == "__main__":
    main()
