"""What ranks cost on the CPU: memory of each, time of an update, and how much of it is waiting.

    OMP_NUM_THREADS=1 python benchmarks/ranks.py

A model of random weights trains on made-up rows, over 1, 2 and 4 processes with gloo. On two cores
more ranks cannot be faster: the figures say what splitting adds, and whether the memory estimate
holds. `work` is the processor time of all ranks over that of one; `waits` is the share of the wall
clock in which a rank did not compute.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import psutil
import torch
from common import (
    alone,
    describe_machine,
    markdown_row,
    markdown_table,
    memory_of,
    read_options,
    temporary_folder,
)
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging as transformers_logging

from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.memory import estimate_memory
from echoscope.core.optim import Optimizer
from echoscope.core.policy import build_policy
from echoscope.core.update.batch import TokenBatch
from echoscope.core.update.learners.alone import Learner
from echoscope.core.update.learners.processes import start_ranks
from echoscope.core.update.learners.ranked import RankedLearner

MIB = 1 << 20
VOCABULARY = 8192


def main() -> None:
    arguments = read_options(
        __doc__,
        hidden=640,
        layers=12,
        sizes={"type": int, "nargs": "+", "default": [1, 2, 4]},
        measure={"type": Path, "help": argparse.SUPPRESS},
    )
    torch.set_num_threads(1)
    transformers_logging.disable_progress_bar()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, *arguments.sizes)))
        return
    with temporary_folder() as folder:
        num_weights = save_model(folder, arguments.hidden, arguments.layers)
        print(f"{describe_machine()}, one thread a rank")
        print(f"{num_weights / 1e6:.0f} million weights in float32, 16 rows of 128 tokens\n")
        held = ("rank 0, MiB", "another, MiB", "estimate, MiB")
        print(markdown_table(("ranks", "update, s", "work", "waits", *held)))
        of_one = math.nan
        for size in arguments.sizes:
            row = alone(__file__, "--measure", folder, "--sizes", size)
            of_one = row["work"] if size == 1 else of_one
            cells = (size, f"{row['seconds']:.2f}", f"{row['work'] / of_one:.2f}")
            memory = (f"{row[name]:.0f}" for name in ("held", "of_others", "estimate"))
            print(markdown_row((*cells, f"{row['waits']:.0%}", *memory)), flush=True)


def save_model(folder: Path, hidden: int, layers: int) -> int:
    shape = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(shape)
    model.save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def configured(folder: Path, size: int) -> RunConfig:
    return load_config(
        overrides=[
            f"model.path={folder}",
            "model.device=cpu",
            "model.gradient_checkpointing=true",
            "envs.train=[{env: bandit, groups: 2, max_turns: 1}]",
            "envs.group_size=8",
            "envs.eval=[]",
            "context.max_prompt_tokens=64",
            "context.max_response_tokens=64",
            "optim.max_microbatch_tokens=512",
            f"trainer.ranks={size}",
        ]
    )


def measure(folder: Path, size: int) -> dict[str, float]:
    """Two updates of `size` ranks; memory in MiB above what the processes began with."""
    config = configured(folder, size)
    ranks = start_ranks(size, "cpu") if size > 1 else None
    me = psutil.Process()
    others = me.children() if ranks else []
    began = [process.memory_info().rss for process in (me, *others)]
    policy = build_policy(config.model, config.critic, seed=0)
    learner = (
        RankedLearner(policy, config, ranks)
        if ranks
        else Learner(policy=policy, optimizer=Optimizer(policy.parameter_groups(), config.optim))
    )
    batch = some_rows()
    learner.update(batch, config, 1)  # moments are there after it
    before = [busy(process) for process in (me, *others)]
    started = time.perf_counter()
    for step in (2, 3):
        learner.update(batch, config, step)
    seconds = (time.perf_counter() - started) / 2
    work = [(busy(p) - b) / 2 for p, b in zip((me, *others), before, strict=True)]
    held = [(memory_of(p.pid) - b) / MIB for p, b in zip((me, *others), began, strict=True)]
    needs = estimate_memory(config, "cpu")
    at_most = needs.weights + needs.optimizer + needs.gradients + needs.activations_at_most
    learner.close()
    return {
        "seconds": seconds,
        "work": sum(work),
        "waits": 1 - sum(work) / len(work) / seconds,
        "held": held[0],
        "of_others": max(held[1:], default=math.nan),
        "estimate": at_most / MIB,
    }


def busy(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def some_rows() -> TokenBatch:
    """Sixteen rows of 128 tokens, the latter half sampled."""
    generator = torch.Generator().manual_seed(0)
    rows, width = 16, 128
    sampled = (torch.arange(width) >= width // 2).repeat(rows, 1)
    return TokenBatch(
        input_ids=torch.randint(0, VOCABULARY, (rows, width), generator=generator),
        attention_mask=torch.ones_like(sampled),
        loss_mask=sampled,
        turn_index=sampled.long() - 1,
        behaviour_logprobs=torch.full(sampled.shape, -9.0),
        token_rewards=torch.zeros(sampled.shape),
        trajectory_index=torch.arange(rows),
        group_index=torch.arange(rows) // 8,
        trajectory_num_tokens=sampled.sum(1),
        advantages=torch.randn(sampled.shape, generator=generator),
    )


if __name__ == "__main__":
    main()
