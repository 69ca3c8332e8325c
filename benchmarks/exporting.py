"""What `echoscope export` takes: `python benchmarks/exporting.py --episodes 20000`.

A run of made-up episodes is written, 512 a step: three turns and about 3 KB of text each, with
200 tokens a turn. It is exported to each format in a process of its own, whose time and largest
memory are reported.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from common import describe_machine, folder_bytes, read_options, temporary_folder, usage_of_command
from importing import SENTENCE, turns
from made_run import step_metrics
from trajectories import make_trajectory

from echoscope.store.records import Trajectory, Turn, prompt_key
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
    return make_trajectory(
        *(
            Turn(
                index=position,
                observation=f"Task {group}." if not position else asked,
                response=reply,
                prompt_tokens=tokens,
                response_tokens=tokens,
                logprobs=np.zeros(TOKENS, dtype=np.float32),
                entropies=np.zeros(TOKENS, dtype=np.float32),
                actions=(f"move {rng.randrange(1000)}",),
                reward=rng.random(),
            )
            for position, (asked, reply) in enumerate(texts)
        ),
        step=step,
        index=index,
        group_index=group,
        sibling_index=index % GROUP,
        tag="made_up",
        env_seed=step * PER_STEP + group,
        noise_seed=index,
        prompt_key=prompt_key(f"{step} {group}"),
        is_success=rng.random() < 0.5,
    )


def write_run(path: Path, episodes: int) -> int:
    """A run of at least so many episodes; how many there are."""
    rng, written = random.Random(0), 0
    with RunWriter.create(path, run_id="made-up", config={}) as writer:
        for step in range(-(-episodes // PER_STEP)):
            rows = [trajectory(rng, step, index) for index in range(PER_STEP)]
            metrics = step_metrics("made-up", step, {"policy/entropy": 1.0})
            writer.commit_step(metrics=[metrics], trajectories=rows, outcomes=[])
            written += len(rows)
    return written


def main() -> None:
    args = read_options(__doc__, episodes=20_000, formats={"nargs": "*", "default": list(FORMATS)})
    print(describe_machine())
    with temporary_folder() as folder:
        run = folder / "run"
        episodes = write_run(run, args.episodes)
        print(f"{episodes:,} episodes")
        for name in args.formats:
            output = folder / (f"{name}.eval" if name == "inspect" else name)
            used = usage_of_command("export", run, "--to", name, "-o", output)
            print(
                f"{name}: {used.wall_s:.1f} s ({episodes / used.wall_s:,.0f} episodes/s), "
                f"processor {used.cpu_s:.1f} s ({episodes / used.cpu_s:,.0f} episodes/s of it), "
                f"peak {used.peak_mib:.0f} MiB, {folder_bytes(output) / 1e6:.0f} MB written"
            )


if __name__ == "__main__":
    main()
