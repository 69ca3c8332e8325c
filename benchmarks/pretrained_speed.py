"""Our sampling and our training step on a pretrained model, against transformers and TRL.

generate: real multi-turn episodes are played once, and the prompts of every turn are kept. Then the
built-in engine and `model.generate` sample the same number of tokens after the same prompts, 16
rows at once. The engine keeps keys and values between turns; `generate` begins anew at every call,
because it takes no cache whose rows have different lengths. One row of the table is a single turn
of 16 different prompts, where nothing can be kept or shared.

step: one GRPO step against TRL's GRPOTrainer: same model, prompts, number of trajectories,
sampling, reward and longest reply, one optimizer step each, float32, all weights. TRL runs without
gradient checkpointing (its default recomputes activations and is slower), as ours does. The reward
differs between siblings, so that every row has a gradient. `benchmarks/train_step.py` is the same
comparison for the shipped small policy.

    pip install -e '.[bench]'
    echoscope models get smollm2
    python benchmarks/pretrained_speed.py [generate] [step] [--model smollm2] [--steps 3] [--json]
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from common import describe_machine, print_json, temporary_folder
from generating import generate
from train_step import Measured, Shape, measure_echoscope, measure_trl
from transformers import GenerationConfig, PreTrainedModel

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.config.loading import load_config
from echoscope.core.config.settings import RunConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.policy import load_model
from echoscope.core.pretrained.policy_assets import resolve_model
from echoscope.core.rollout.chat import load_chat
from echoscope.core.rollout.rollout import Collection
from echoscope.envs.pool import EnvPool
from echoscope.store.records import IntArray, Split, Turn

TEXT = (
    "context.system=You solve a task step by step in a text world.",
    "context.instructions=true",
    "context.format_hint=true",
    "context.max_prompt_tokens=4000",
)
"""What a pretrained model is told: the recipe's own prompts are for the shipped policy."""


def share_of_e(turn: Turn) -> float:
    """A reward that siblings hardly ever agree on."""
    return score(turn.response)


def score(text: str) -> float:
    return text.count("e") / max(len(text), 1)


# -- sampling ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The prompts of one turn of all episodes that still go on."""

    prompts: list[IntArray]
    seeds: list[int]


class Recorder(HfEngine):
    """Samples replies of one length, and keeps the calls."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(model, config=HfEngineConfig())
        self.calls: list[Call] = []

    def submit(self, key: int, prompt: IntArray, params: SamplingParams, *, seed: int) -> None:
        if not self.num_pending:
            self.calls.append(Call(prompts=[], seeds=[]))
        self.calls[-1].prompts.append(prompt)
        self.calls[-1].seeds.append(seed)
        params = replace(params, stop_token_ids=(), records_support=False)
        super().submit(key, prompt, params, seed=seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How fast one loop samples: the quickest of its repeats."""

    case: str
    loop: str
    tokens: int
    wall_s: float
    processor_s: float

    def row(self) -> dict[str, float | str]:
        return {
            "case": self.case,
            "loop": self.loop,
            "tokens": self.tokens,
            "wall_s": round(self.wall_s, 2),
            "tokens_per_s": round(self.tokens / self.wall_s, 1),
            "tokens_per_processor_s": round(self.tokens / self.processor_s, 1),
        }


def episodes(config: RunConfig, model: PreTrainedModel) -> list[Call]:
    """The calls of one step's episodes."""
    recorder = Recorder(model)
    chat = load_chat(resolve_model(config.model.path))
    size = config.envs.group_size
    with EnvPool(config.envs.train, group_size=size, seed=0, split=Split.TRAIN) as pool:
        Collection(
            pool=pool,
            engine=recorder,
            chat=chat,
            context=config.context,
            sampling=config.sampling,
            step=1,
            split=Split.TRAIN,
            seed=0,
        ).run()
    return recorder.calls


def by_engine(model: PreTrainedModel, calls: Sequence[Call], new_tokens: int) -> Callable[[], None]:
    params = SamplingParams(max_new_tokens=new_tokens)

    def run() -> None:
        engine = HfEngine(model, config=HfEngineConfig())
        for call in calls:
            generate(engine, call.prompts, params, seeds=call.seeds)

    return run


def by_generate(
    model: PreTrainedModel, calls: Sequence[Call], new_tokens: int
) -> Callable[[], None]:
    """Left-padded, as decoder-only models need it; no stop token, so all replies are as long."""
    generation = GenerationConfig(
        do_sample=True, top_k=0, max_new_tokens=new_tokens, pad_token_id=0, eos_token_id=None
    )

    def run() -> None:
        for call in calls:
            width = max(map(len, call.prompts))
            ids = torch.zeros(len(call.prompts), width, dtype=torch.long)
            mask = torch.zeros_like(ids)
            for row, prompt in enumerate(call.prompts):
                ids[row, width - len(prompt) :] = torch.from_numpy(prompt.astype("int64"))
                mask[row, width - len(prompt) :] = 1
            out = model.generate(ids, attention_mask=mask, generation_config=generation)
            assert out.shape == (len(call.prompts), width + new_tokens)

    return run


def measure(case: str, loop: str, run: Callable[[], None], tokens: int, repeats: int) -> Rate:
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        run()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return Rate(case=case, loop=loop, tokens=tokens, wall_s=min(walls), processor_s=min(processors))


def sampling(name: str, *, turns: int, new_tokens: int, repeats: int, dtype: str) -> list[Rate]:
    config = load_config(
        "frozen_lake",
        overrides=[
            f"model.path={name}",
            f"model.dtype={dtype}",
            *TEXT,
            "envs.train.0.groups=4",
            "envs.group_size=4",
            f"envs.train.0.max_turns={turns}",
            f"context.max_response_tokens={new_tokens}",
        ],
    )
    model = load_model(config.model.path, config.model)
    calls = episodes(config, model)
    rows = 16
    lengths = [len(prompt) for call in calls for prompt in call.prompts]
    print(
        f"{len(lengths)} replies of {new_tokens} tokens in {len(calls)} turns, prompts of "
        f"{min(lengths)} to {max(lengths)} tokens, {dtype}",
        flush=True,
    )
    # Prompts with nothing in common: the first ones, each with its first token changed.
    alone = [prompt.copy() for prompt in calls[0].prompts]
    for row, prompt in enumerate(alone):
        prompt[0] = 100 + row
    single = Call(prompts=alone, seeds=list(range(rows)))
    out = []
    for case, chosen in (("multi-turn episodes", calls), ("16 different prompts", [single])):
        tokens = new_tokens * sum(len(call.prompts) for call in chosen)
        for loop, make in (("hf engine", by_engine), ("generate()", by_generate)):
            rate = measure(case, loop, make(model, chosen, new_tokens), tokens, repeats)
            print("  ".join(f"{key} {value}" for key, value in rate.row().items()), flush=True)
            out.append(rate)
        ours, theirs = out[-2:]
        print(
            f"the engine samples {theirs.wall_s / ours.wall_s:.2f} times the tokens per second, "
            f"{theirs.processor_s / ours.processor_s:.2f} times per second of processor time",
            flush=True,
        )
    return out


# -- a step --------------------------------------------------------------------------------------


def step(name: str, steps: int, new_tokens: int) -> tuple[Shape, Measured, Measured]:
    shape = Shape(
        groups=4,
        siblings=4,
        max_tokens=new_tokens,
        model=name,
        warm_up=1,
        extra=(
            *TEXT,
            "reward.shaping=[{name: e, function: 'pretrained_speed:share_of_e', weight: 10}]",
        ),
    )
    with temporary_folder() as folder:
        ours = measure_echoscope("frozen_lake", steps, shape, folder)
        print("  ".join(f"{k} {v}" for k, v in ours.row("echoscope", shape).items()), flush=True)
        theirs = measure_trl("frozen_lake", steps, shape, folder, score=score, recomputes=False)
        print("  ".join(f"{k} {v}" for k, v in theirs.row("trl", shape).items()), flush=True)
    print(
        f"echoscope makes {theirs.wall_s / ours.wall_s:.2f} times the trajectories per second, "
        f"{theirs.processor_s / ours.processor_s:.2f} times per second of processor time",
        flush=True,
    )
    return shape, ours, theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["generate", "step"])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    parts = arguments.parts or ["generate", "step"]
    print(describe_machine(), flush=True)
    out: dict[str, Any] = {}
    if "generate" in parts:
        rates = sampling(
            arguments.model,
            turns=arguments.turns,
            new_tokens=arguments.new_tokens,
            repeats=arguments.repeats,
            dtype=arguments.dtype,
        )
        out["generate"] = [rate.row() for rate in rates]
    if "step" in parts:
        shape, ours, theirs = step(arguments.model, arguments.steps, arguments.new_tokens)
        out["step"] = [ours.row("echoscope", shape), theirs.row("trl GRPOTrainer", shape)]
    print(describe_machine())
    if arguments.json:
        print_json(**out)


if __name__ == "__main__":
    main()
