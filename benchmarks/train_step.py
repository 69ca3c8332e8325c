"""One training step of Echoscope against TRL's GRPO trainer, in one run.

Same model (the shipped policy), same prompts (the demo's, or another recipe's, one turn each), same
number of trajectories a step, same sampling, one optimizer step each, one thread each. The learning
rate is so small that the policy stays what it is, so both sample replies of the same length; token
counts are printed.
Echoscope's step includes environments, parsing and the store; the diagnostics, which TRL does not
have, are off.

    pip install -e '.[bench]'
    python benchmarks/train_step.py [--steps 15] [--recipe demo] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from machine import describe_machine

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.policy_assets import resolve_model
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.core.rollout.sources import build_pool
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.store.records import Split

GROUPS, SIBLINGS, MAX_TOKENS, WARM_UP = 8, 8, 40, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds and sampled tokens per step, warm-up left out."""

    seconds: list[float]
    tokens_per_step: float

    @property
    def p50_s(self) -> float:
        return statistics.median(self.seconds)

    def row(self, name: str) -> dict[str, float | str]:
        return {
            "trainer": name,
            "step_p50_s": round(self.p50_s, 4),
            "trajectories_per_s": round(GROUPS * SIBLINGS / self.p50_s, 1),
            "tokens_per_trajectory": round(self.tokens_per_step / (GROUPS * SIBLINGS), 1),
            "tokens_per_s": round(self.tokens_per_step / self.p50_s, 0),
        }


def settings(steps: int) -> list[str]:
    return [
        f"steps={steps}",
        f"envs.group_size={SIBLINGS}",
        f"envs.train.0.groups={GROUPS}",
        "envs.eval=[]",
        "probe.every=0",
        "envs.train.0.max_turns=1",
        "selection.strategy=none",
        "advantage.kind=grpo",
        "optim.lr=1e-12",
        f"context.max_response_tokens={MAX_TOKENS}",
        "checkpoint.every=0",
        "diagnostics.enabled=false",
    ]


def measure_echoscope(recipe: str, steps: int, folder: Path) -> Measured:
    config = load_config(recipe, overrides=settings(steps + WARM_UP))
    path = folder / "run"
    start(config, path, SilentEvents())
    reader = open_run(path)
    _, seconds = reader.metrics("time/step_s")
    _, tokens = reader.metrics("rollout/num_sampled_tokens")
    return Measured(seconds=list(seconds[WARM_UP:]), tokens_per_step=float(tokens[WARM_UP:].mean()))


def prompts(recipe: str, num_steps: int) -> list[str]:
    """The prompts that the run above meets, as text."""
    config = load_config(recipe, overrides=settings(num_steps))
    chat = ChatFormat(load_tokenizer(resolve_model("tiny")))
    pool = build_pool(config.envs.train, group_size=1, seed=config.seed, split=Split.TRAIN)
    out = []
    for step in range(1, num_steps + 1):
        for slot in pool.reset(step):
            conversation = Conversation(chat, config.context, slot.instructions)
            tokens = conversation.prompt(slot.observation.text).tokens
            out.append(chat.tokenizer.decode(tokens, skip_special_tokens=False))
    return out


def measure_trl(recipe: str, steps: int, folder: Path) -> Measured:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[float] = []
    lengths: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            ends.append(time.perf_counter())

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths.append(float(sum(map(len, completion_ids))))
        return [float("ou" in text) for text in completions]

    tokenizer = load_tokenizer(resolve_model("tiny"))
    total = steps + WARM_UP
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(resolve_model("tiny"), dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts(recipe, total)}),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=GROUPS * SIBLINGS,
            num_generations=SIBLINGS,
            max_completion_length=MAX_TOKENS,
            max_steps=total,
            learning_rate=1e-12,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=1.0,
            top_k=0,
            bf16=False,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
        ),
        callbacks=[Clock()],
    )
    trainer.train()
    seconds = [b - a for a, b in itertools.pairwise(ends)][WARM_UP - 1 :]
    return Measured(seconds=seconds, tokens_per_step=statistics.mean(lengths[WARM_UP:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--recipe", default="demo")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours = measure_echoscope(arguments.recipe, arguments.steps, folder)
        theirs = measure_trl(arguments.recipe, arguments.steps, folder)
    rows = [ours.row("echoscope"), theirs.row("trl GRPOTrainer")]
    ratio = theirs.p50_s / ours.p50_s
    if arguments.json:
        print(json.dumps({"machine": describe_machine(), "rows": rows, "speed_ratio": ratio}))
        return
    print(describe_machine())
    size = f"{GROUPS} prompts x {SIBLINGS}, up to {MAX_TOKENS} tokens"
    print(f"{arguments.recipe}: {size}, {arguments.steps} steps")
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    print(f"echoscope makes {ratio:.2f} times the trajectories per second")


if __name__ == "__main__":
    main()
