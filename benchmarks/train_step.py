"""One training step of Echoscope against TRL's GRPO trainer, in one run.

Same model (the shipped policy), same prompts (the demo's, or another recipe's, one turn each), same
number of trajectories a step, same sampling, one optimizer step each, one thread each. The learning
rate is so small that the policy stays what it is, so both sample replies of the same length; token
counts are printed. On a busy machine trust the ratio of processor times.
Echoscope's step includes environments, parsing and the store; the diagnostics, which TRL does not
have, are off. TRL runs twice: as it comes, with gradient checkpointing, and without, as Echoscope
does on a CPU.

    pip install -e '.[bench]'
    python benchmarks/train_step.py [--steps 15] [--recipe demo] [--json]
    python benchmarks/train_step.py --curves [--steps 5] [--json]

`--curves` repeats the comparison over reply lengths, prompt lengths and group sizes. Its replies
are sampled at a high temperature, so that few of them end before they are cut. TRL runs without
gradient checkpointing there.
"""

from __future__ import annotations

import itertools
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from common import describe_machine, print_json, read_options, temporary_folder
from pools import begin

from echoscope import open_run
from echoscope.core.config.loading import load_config
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import ChatFormat, load_tokenizer
from echoscope.core.rollout.context import Conversation
from echoscope.core.run.launch import start
from echoscope.core.run.observers import SilentEvents
from echoscope.envs.pool import EnvPool
from echoscope.store.records import Split, StepMetrics

WARM_UP = 3
SYSTEM = "You solve a task step by step in a text world."


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a step holds."""

    groups: int = 8
    siblings: int = 8
    max_tokens: int = 40
    temperature: float = 1.0
    more_words: int = 0
    """Words put before each prompt, to make it longer."""
    model: str = "tiny"
    extra: tuple[str, ...] = ()
    """More settings of Echoscope's run."""
    warm_up: int = WARM_UP
    """Steps that are not measured."""

    @property
    def num_rows(self) -> int:
        return self.groups * self.siblings

    def settings(self, steps: int) -> list[str]:
        """Of Echoscope's run."""
        longer = [f"context.system={SYSTEM}{' world' * self.more_words}"] if self.more_words else []
        return [
            *longer,
            "context.max_prompt_tokens=1800",
            f"steps={steps}",
            f"envs.group_size={self.siblings}",
            f"envs.train.0.groups={self.groups}",
            "envs.eval=[]",
            "probe.every=0",
            "envs.train.0.max_turns=1",
            "selection.strategy=none",
            "advantage.kind=grpo",
            "optim.lr=1e-12",
            f"context.max_response_tokens={self.max_tokens}",
            f"sampling.temperature={self.temperature}",
            "checkpoint.every=0",
            "diagnostics.enabled=false",
            f"model.path={self.model}",
            *self.extra,
        ]


HOT = {"temperature": 4.0, "max_tokens": 40}
CURVES = {
    "reply tokens": {n: Shape(temperature=4.0, max_tokens=n) for n in (20, 40, 80, 160)},
    "words before the prompt": {n: Shape(**HOT, more_words=n) for n in (0, 100, 300)},
    "siblings": {n: Shape(**HOT, groups=4, siblings=n) for n in (4, 8, 16, 32)},
}


def clocks() -> tuple[float, float]:
    """Wall and processor seconds."""
    return time.perf_counter(), time.process_time()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A step's seconds (medians) and its sampled tokens (mean), warm-up left out."""

    wall_s: float
    processor_s: float
    tokens: float

    @classmethod
    def of(
        cls, ends: list[tuple[float, float]], tokens: list[float], warm_up: int = WARM_UP
    ) -> Measured:
        """From `clocks` at the ends of all steps, and all steps' sampled tokens."""
        gaps = [(b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(ends)][warm_up - 1 :]
        return cls(
            wall_s=statistics.median(wall for wall, _ in gaps),
            processor_s=statistics.median(processor for _, processor in gaps),
            tokens=statistics.mean(tokens[warm_up:]),
        )

    def row(self, name: str, shape: Shape) -> dict[str, float | str]:
        return {
            "trainer": name,
            "step_p50_s": round(self.wall_s, 4),
            "processor_p50_s": round(self.processor_s, 4),
            "trajectories_per_s": round(shape.num_rows / self.wall_s, 1),
            "tokens_per_trajectory": round(self.tokens / shape.num_rows, 1),
            "tokens_per_s": round(self.tokens / self.wall_s, 0),
        }


class ClockedEvents(SilentEvents):
    """Reads the clocks where a step is written down."""

    def __init__(self) -> None:
        self.ends: list[tuple[float, float]] = []

    def metrics(self, metrics: StepMetrics) -> None:
        self.ends.append(clocks())


def measure_echoscope(recipe: str, steps: int, shape: Shape, folder: Path) -> Measured:
    config = load_config(recipe, overrides=shape.settings(steps + shape.warm_up))
    events = ClockedEvents()
    start(config, folder / "run", events)
    _, tokens = open_run(folder / "run").metrics("rollout/num_sampled_tokens")
    return Measured.of(events.ends, list(tokens), shape.warm_up)


def prompts(recipe: str, num_steps: int, shape: Shape) -> list[str]:
    """The prompts that the run above meets, as text."""
    config = load_config(recipe, overrides=shape.settings(num_steps))
    chat = ChatFormat(load_tokenizer(resolve_model(shape.model)))
    pool = EnvPool(config.envs.train, group_size=1, seed=config.seed, split=Split.TRAIN)
    out = []
    for step in range(1, num_steps + 1):
        for slot in begin(pool, step):
            conversation = Conversation(chat, config.context, slot.instructions)
            tokens = conversation.prompt(slot.observation.text).tokens
            out.append(chat.tokenizer.decode(tokens, skip_special_tokens=False))
    return out


def measure_trl(
    recipe: str,
    steps: int,
    shape: Shape,
    folder: Path,
    *,
    score: Callable[[str], float] = lambda text: float("ou" in text),
    recomputes: bool = True,
) -> Measured:
    """GRPOTrainer's step.

    Args:
        score: the reward of a reply.
        recomputes: gradient checkpointing, which is TRL's default.
    """
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends: list[tuple[float, float]] = []
    lengths: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *args: object, **kwargs: object) -> None:
            ends.append(clocks())

    def reward(completions: list[str], completion_ids: list[list[int]], **_: object) -> list[float]:
        lengths.append(float(sum(map(len, completion_ids))))
        return [score(text) for text in completions]

    folder_of_model = resolve_model(shape.model)
    tokenizer = load_tokenizer(folder_of_model)
    total = steps + shape.warm_up
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder_of_model, dtype=torch.float32),
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": prompts(recipe, total, shape)}),
        args=GRPOConfig(
            output_dir=str(folder / "trl"),
            per_device_train_batch_size=shape.num_rows,
            num_generations=shape.siblings,
            max_completion_length=shape.max_tokens,
            max_steps=total,
            learning_rate=1e-12,
            lr_scheduler_type="constant",
            beta=0.0,
            temperature=shape.temperature,
            top_k=0,
            bf16=False,
            gradient_checkpointing=recomputes,
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
    return Measured.of(ends, lengths, shape.warm_up)


def compare(
    recipe: str, steps: int, shape: Shape, *, recomputes: bool = True
) -> tuple[Measured, Measured]:
    """Echoscope and TRL, as it comes or without gradient checkpointing."""
    with temporary_folder() as name:
        ours = measure_echoscope(recipe, steps, shape, name)
        return ours, measure_trl(recipe, steps, shape, name, recomputes=recomputes)


def curves(steps: int) -> list[dict[str, float | str]]:
    """A row for each point of each curve."""
    rows = []
    for axis, points in CURVES.items():
        for value, shape in points.items():
            ours, theirs = compare("bandit", steps, shape, recomputes=False)
            rows.append(
                {
                    "axis": axis,
                    "value": value,
                    "echoscope_processor_s": round(ours.processor_s, 3),
                    "trl_processor_s": round(theirs.processor_s, 3),
                    "ratio": round(theirs.processor_s / ours.processor_s, 2),
                    "echoscope_tokens": round(ours.tokens),
                    "trl_tokens": round(theirs.tokens),
                }
            )
            print("  ".join(f"{key} {entry}" for key, entry in rows[-1].items()), flush=True)
    return rows


def main() -> None:
    arguments = read_options(__doc__, steps=15, recipe="demo", curves=False, json=False)
    torch.set_num_threads(1)
    if arguments.curves:
        rows = curves(arguments.steps)
        if arguments.json:
            print_json(rows=rows)
        return
    shape = Shape()
    ours, as_it_comes = compare(arguments.recipe, arguments.steps, shape)
    with temporary_folder() as name:
        plain = measure_trl(arguments.recipe, arguments.steps, shape, name, recomputes=False)
    others = {
        "trl GRPOTrainer as it comes": as_it_comes,
        "trl GRPOTrainer without gradient checkpointing": plain,
    }
    rows = [ours.row("echoscope", shape)]
    rows += [theirs.row(name, shape) for name, theirs in others.items()]
    ratios = {
        name: (theirs.wall_s / ours.wall_s, theirs.processor_s / ours.processor_s)
        for name, theirs in others.items()
    }
    if arguments.json:
        print_json(rows=rows, ratios=ratios)
        return
    print(describe_machine())
    size = f"{shape.groups} prompts x {shape.siblings}, up to {shape.max_tokens} tokens"
    print(f"{arguments.recipe}: {size}, {arguments.steps} steps")
    for row in rows:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    for name, (by_wall, by_processor) in ratios.items():
        print(
            f"echoscope makes {by_wall:.2f} times the trajectories per second of {name}, "
            f"{by_processor:.2f} times per second of processor time"
        )


if __name__ == "__main__":
    main()
