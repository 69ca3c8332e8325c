"""What `echoscope export` takes: `python benchmarks/exporting.py --episodes 20000`.

A run of made-up episodes is written, 512 a step: three turns and about 3 KB of text each, with
200 tokens a turn. It is exported to each format in a process of its own, whose time and largest
memory are reported.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from importing import SENTENCE, turns
from machine import describe_machine

from echoscope.store.records import (
    Split,
    StepMetrics,
    StopReason,
    Trajectory,
    Turn,
    prompt_key,
)
from echoscope.store.writer import RunWriter

PER_STEP = 512
GROUP = 8
TOKENS = 200
FORMATS = ("messages", "inspect", "duckdb", "csv", "sft", "dpo")
WORD_COUNT = len(SENTENCE.split())


def trajectory(rng: random.Random, step: int, index: int) -> Trajectory:
    group = index // GROUP
    tokens = np.array([rng.randrange(WORD_COUNT) for _ in range(TOKENS)], dtype=np.int32)
    texts = turns(rng)
    return Trajectory(
        step=step,
        split=Split.TRAIN,
        index=index,
        group_index=group,
        sibling_index=index % GROUP,
        env_id="made_up",
        tag="made_up",
        env_seed=step * PER_STEP + group,
        noise_seed=index,
        prompt_key=prompt_key(f"{step} {group}"),
        turns=tuple(
            Turn(
                index=place,
                observation=f"Task {group}." if not place else asked,
                response=reply,
                prompt_tokens=tokens,
                response_tokens=tokens,
                logprobs=np.zeros(TOKENS, dtype=np.float32),
                entropies=np.zeros(TOKENS, dtype=np.float32),
                actions=(f"move {rng.randrange(1000)}",),
                reward=rng.random(),
            )
            for place, (asked, reply) in enumerate(texts)
        ),
        stop_reason=StopReason.TERMINATED,
        is_success=rng.random() < 0.5,
    )


def write_run(path: Path, episodes: int) -> int:
    """A run of at least so many episodes; how many there are."""
    rng, written = random.Random(0), 0
    with RunWriter.create(path, run_id="made-up", config={}) as writer:
        for step in range(-(-episodes // PER_STEP)):
            rows = [trajectory(rng, step, index) for index in range(PER_STEP)]
            metrics = StepMetrics(
                run_id="made-up",
                step=step,
                phase="train",
                policy_version=step,
                wall_time=time.time(),
                values={"policy/entropy": 1.0},
            )
            writer.commit_step(metrics=[metrics], trajectories=rows, outcomes=[])
            written += len(rows)
    return written


def measure(run: Path, to: str, output: Path) -> dict[str, float]:
    """Wall time, processor time and largest memory of an export."""
    command = [sys.executable, "-m", "echoscope", "export", str(run), "--to", to, "-o", str(output)]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    # Of this child alone: `RUSAGE_CHILDREN` keeps the largest memory of all of them.
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = status
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return {
        "wall_s": wall,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=20_000)
    parser.add_argument("--formats", nargs="*", default=list(FORMATS))
    args = parser.parse_args()
    print(describe_machine())
    with tempfile.TemporaryDirectory(prefix="echoscope-exporting-") as folder:
        run = Path(folder) / "run"
        episodes = write_run(run, args.episodes)
        print(f"{episodes:,} episodes")
        for name in args.formats:
            output = Path(folder) / (f"{name}.eval" if name == "inspect" else name)
            used = measure(run, name, output)
            files = [output] if output.is_file() else [p for p in output.rglob("*") if p.is_file()]
            size = sum(file.stat().st_size for file in files)
            print(
                f"{name}: {used['wall_s']:.1f} s ({episodes / used['wall_s']:,.0f} episodes/s), "
                f"processor {used['cpu_s']:.1f} s ({episodes / used['cpu_s']:,.0f} episodes/s of "
                f"it), peak {used['peak_mib']:.0f} MiB, {size / 1e6:.0f} MB written"
            )


if __name__ == "__main__":
    main()
