"""What a shipped policy can do before reinforcement learning: success on each world it was shown.

    python benchmarks/policy_success.py [--policy tiny-puzzles] [--lessons FILE.yaml] [--tasks 200]

Prints the table of examples/narrators/README.md: temperature 1, evaluation tasks, 95 % Wilson
intervals.
"""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import describe_machine, markdown_table, read_options

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import ModelConfig, SamplingConfig
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import load_model
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.rollout.rollout import Collection
from echoscope.diagnostics.measure.rates import wilson_interval
from echoscope.envs.pool import EnvPool
from echoscope.store.records import Split

LESSONS = Path(__file__).parents[1] / "core" / "assets" / "demonstrations" / "puzzles.yaml"


def main() -> None:
    arguments = read_options(__doc__, policy="tiny-puzzles", lessons=LESSONS, tasks=200)
    folder = resolve_model(arguments.policy)
    model = load_model(folder, ModelConfig(path=folder, dtype="float32", device="cpu"))
    engine, chat = HfEngine(model, config=HfEngineConfig()), ChatFormat(load_tokenizer(folder))
    lessons = load_config(file=arguments.lessons)
    print(f"{describe_machine()}, one thread, seed 0, {arguments.tasks} tasks\n")
    print(markdown_table(("world", "turns", "success", "valid")))
    for group in lessons.envs.train:
        batch = Collection(
            pool=EnvPool(
                [group.model_copy(update={"groups": arguments.tasks})],
                group_size=1,
                seed=0,
                split=Split.EVAL,
            ),
            engine=engine,
            chat=chat,
            context=lessons.context,
            sampling=SamplingConfig(),
            step=0,
            split=Split.EVAL,
            seed=0,
        ).run()
        rate = float(np.mean([bool(episode.is_success) for episode in batch.trajectories]))
        turns = [turn for episode in batch.trajectories for turn in episode.turns]
        low, high = (100 * float(end) for end in wilson_interval(rate, arguments.tasks))
        params = ", ".join(f"{key} {value}".replace("'", "") for key, value in group.params.items())
        print(
            f"| {group.env}: {params} | {group.max_turns} | {100 * rate:.1f} % "
            f"[{low:.1f}, {high:.1f}] | {100 * np.mean([t.is_valid for t in turns]):.1f} % |",
            flush=True,
        )


if __name__ == "__main__":
    main()
