"""The memory estimate against measured peaks, on the CPU, for models of random weights.

Each case runs in a process of its own: it builds the policy and its optimizer, then makes two
updates (the second one has all moments), or samples once, with every prompt and reply at its limit.
The peak is the process's resident memory above what it had before the model was built. The estimate
is `at_most` of the case's configuration, and for sampling that part of it.

    python benchmarks/memory.py [--case NAME ...] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from common import alone, forget_peak, memory_of, print_json, read_options

if TYPE_CHECKING:
    from echoscope.core.config.settings import RunConfig
    from echoscope.core.optim import Optimizer
    from echoscope.core.policy import Policy

os.environ.setdefault("OMP_NUM_THREADS", "1")

ALLOWED = 0.15
"""Largest share by which an estimate may be off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A configuration, and the rows of one optimizer step: prompts of `prompt` tokens, siblings."""

    settings: tuple[str, ...] = ()
    prompt: int = 64
    reply: int = 192
    groups: int = 2
    siblings: int = 4
    samples: bool = False
    """Sample instead of updating."""
    hidden: int = 256
    layers: int = 6
    vocabulary: int = 8000


CRITIC = "advantage.kind=gae"
CASES = {
    "float32": Case(),
    "lora": Case(settings=("model.lora={rank: 16, alpha: 32}",)),
    "critic head": Case(settings=("critic.kind=head", CRITIC)),
    "critic model": Case(settings=("critic.kind=model", CRITIC)),
    "reference": Case(settings=("loss.kl_coef=0.1",)),
    "checkpointing": Case(settings=("model.gradient_checkpointing=true",), layers=12),
    "bfloat16": Case(settings=("model.dtype=bfloat16",)),
    "long prompts": Case(prompt=1536, reply=64, groups=1, siblings=8),
    "long prompts, padded": Case(
        settings=("model.packing=false",), prompt=1536, reply=64, groups=1, siblings=2
    ),
    "vocabulary of 50,000": Case(vocabulary=50_000),
    "vocabulary of 50,000, LoRA": Case(
        vocabulary=50_000, settings=("model.lora={rank: 16, alpha: 32}",)
    ),
    "sampling": Case(prompt=1024, reply=16, siblings=8, groups=2, samples=True),
}


def main() -> None:
    arguments = read_options(
        __doc__,
        case={"action": "append", "choices": list(CASES)},
        json=False,
        alone={"choices": list(CASES), "help": argparse.SUPPRESS},
    )
    if arguments.alone:
        print(json.dumps(measure(CASES[arguments.alone])))
        return
    rows = []
    for name in arguments.case or CASES:
        if "8-bit" in name and find_spec("bitsandbytes") is None:
            print(f"{name:22} needs bitsandbytes", file=sys.stderr)
            continue
        rows.append(compare(name))
        estimate, measured, off = (rows[-1][key] for key in ("estimate", "measured", "off"))
        text = f"{name:22} estimate {estimate / 2**20:7.0f} MiB   measured {measured / 2**20:7.0f}"
        print(f"{text} MiB   {off:+.1%}", file=sys.stderr, flush=True)
    if arguments.json:
        print_json(rows=rows)


def compare(name: str) -> dict[str, Any]:
    """Estimate and peak of a case in bytes, and how far the estimate is off."""
    out = alone(__file__, "--alone", name)
    return {"case": name, **out, "off": out["estimate"] / out["measured"] - 1}


def measure(case: Case) -> dict[str, float]:
    """Estimate and measured peak in bytes, in this process."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from echoscope.core.config.loading import load_config
    from echoscope.core.memory import estimate_memory
    from echoscope.core.optim import Optimizer
    from echoscope.core.policy import build_policy

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        shape = Qwen2Config(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=case.hidden * 3,
            num_hidden_layers=case.layers,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
        Qwen2ForCausalLM(shape).save_pretrained(folder)
        config = load_config(
            overrides=[
                f"model.path={folder}",
                f"envs.train=[{{env: bandit, groups: {case.groups}, max_turns: 1}}]",
                f"envs.group_size={case.siblings}",
                "envs.eval=[]",
                f"context.max_prompt_tokens={case.prompt}",
                f"context.max_response_tokens={case.reply}",
                *case.settings,
            ]
        )
        warm = torch.ones(64, 64, requires_grad=True)  # torch's own buffers
        (warm @ warm).softmax(-1).sum().backward()
        before = memory_of(is_peak=False)
        needs = estimate_memory(config, "cpu")
        policy = build_policy(config.model, config.critic, seed=0)
        optimizer = Optimizer(policy.parameter_groups(), config.optim)
        forget_peak()
        if case.samples:
            sample(policy, config, case)
        else:
            train(policy, optimizer, config, case)
        sampling = needs.weights + needs.caches_at_most + needs.prefill_at_most
        estimate = sampling if case.samples else needs.at_most  # there are no moments yet
        return {"estimate": estimate, "measured": memory_of() - before}


def train(policy: Policy, optimizer: Optimizer, config: RunConfig, case: Case) -> None:
    """Two updates on full rows; annotations are made as a run makes them."""
    from dataclasses import replace

    import torch

    from echoscope.core.update.batch import TokenBatch
    from echoscope.core.update.update import annotate, update

    generator = torch.Generator().manual_seed(0)
    num_rows, width = case.groups * case.siblings, case.prompt + case.reply
    group = torch.arange(num_rows) // case.siblings
    vocabulary_size = case.vocabulary
    prompts = torch.randint(0, vocabulary_size, (case.groups, case.prompt), generator=generator)
    replies = torch.randint(0, vocabulary_size, (num_rows, case.reply), generator=generator)
    sampled = (torch.arange(width) >= case.prompt).expand(num_rows, width)
    normal = torch.randn(num_rows, width, generator=generator)
    batch = TokenBatch(
        input_ids=torch.cat([prompts[group], replies], dim=1),
        attention_mask=torch.ones_like(sampled),
        loss_mask=sampled,
        turn_index=sampled.long() - 1,
        behaviour_logprobs=torch.full(normal.shape, -9.0),
        token_rewards=torch.zeros(normal.shape),
        trajectory_index=torch.arange(num_rows),
        group_index=group,
        trajectory_num_tokens=sampled.sum(1),
    )
    for step in (1, 2):
        annotated, _ = annotate(policy, batch, config)
        ready = replace(annotated, advantages=normal, returns=normal)
        update(policy, optimizer, ready, config, step)


def sample(policy: Policy, config: RunConfig, case: Case) -> None:
    import numpy as np
    from generating import generate

    from echoscope.core.engines.base import SamplingParams
    from echoscope.core.engines.hf.engine import HfEngine

    engine = HfEngine(policy.model, config=config.engine)
    count = case.groups * case.siblings
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, 8000, case.prompt).astype(np.int32) for _ in range(count)]
    generate(engine, prompts, SamplingParams(max_new_tokens=case.reply), seeds=range(count))


if __name__ == "__main__":
    main()
