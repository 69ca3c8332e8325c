"""What a multi-turn rollout costs per turn, with keys and values kept between turns and without.

Without reuse turn k forwards the whole conversation again, so the tokens forwarded grow with the
square of the number of turns; with reuse every token is forwarded once. Before that, the decode
loop alone against `model.generate()` and a loop without any cache: 64 new tokens per row.

Run: python benchmarks/rollout_cost.py [--turns 10] [--rows 64] [--threads 1] [--json]
The model is random (Qwen2 shape, hidden 128, 4 layers, vocabulary 399); nothing is downloaded.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from common import read_options
from forwarded import counted_tokens
from generating import generate
from transformers import Qwen2Config, Qwen2ForCausalLM

from echoscope.core.config.engine import HfEngineConfig
from echoscope.core.engines.base import SamplingParams
from echoscope.core.engines.hf.engine import HfEngine

VOCAB_SIZE = 399
PROMPT_TOKENS = 96
FEEDBACK_TOKENS = 40
NUM_STOP_TOKENS = 12
"""Of 399, so that a response of a random model has about 33 tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnCost:
    """One turn of all rows."""

    turn: int
    context_tokens: int
    sampled_tokens: int
    forwarded_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRate:
    """Tokens per second of one way to decode, best of the repeats."""

    model: str
    loop: str
    tokens_per_second: float


def random_model(hidden: int, layers: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64,
        tie_word_embeddings=True,
        max_position_embeddings=16384,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    return Qwen2ForCausalLM(config).eval()


def rollout(model: Qwen2ForCausalLM, *, rows: int, turns: int, reuse: bool) -> list[TurnCost]:
    """Groups of 8 siblings share the first prompt; the environment answers with random tokens."""
    engine = HfEngine(model, config=HfEngineConfig(reuse_cache=reuse, max_batch_rows=rows))
    rng = np.random.default_rng(0)
    firsts = [
        rng.integers(0, VOCAB_SIZE, PROMPT_TOKENS, dtype=np.int32) for _ in range(-(-rows // 8))
    ]
    prompts = [firsts[row // 8] for row in range(rows)]
    params = SamplingParams(max_new_tokens=64, stop_token_ids=tuple(range(NUM_STOP_TOKENS)))
    costs = []
    for turn in range(turns):
        seeds = [1000 * turn + i for i in range(rows)]
        start = time.perf_counter()
        with counted_tokens() as counts:
            samples = generate(engine, prompts, params, seeds=seeds)
        seconds = time.perf_counter() - start
        costs.append(
            TurnCost(
                turn=turn,
                context_tokens=sum(map(len, prompts)),
                sampled_tokens=sum(len(sample.tokens) for sample in samples),
                forwarded_tokens=counts.prefilled + counts.decoded,
                seconds=seconds,
            )
        )
        prompts = [
            np.concatenate(
                [
                    prompt,
                    sample.tokens,
                    rng.integers(0, VOCAB_SIZE, FEEDBACK_TOKENS, dtype=np.int32),
                ]
            )
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
    return costs


def decode_rates(hidden: int, layers: int, *, rows: int, repeats: int) -> list[DecodeRate]:
    """64 new tokens from prompts of 32, nothing shared and nothing stopping early."""
    model = random_model(hidden, layers)
    new_tokens = 64
    prompts = np.random.default_rng(0).integers(1, VOCAB_SIZE, (rows, 32), dtype=np.int32)
    ids = torch.from_numpy(prompts).long()
    params = SamplingParams(max_new_tokens=new_tokens)

    def with_engine() -> None:
        engine = HfEngine(model, config=HfEngineConfig(max_batch_rows=rows))
        generate(engine, list(prompts), params, seeds=range(rows))

    def with_generate() -> None:
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            top_k=0,
            max_new_tokens=new_tokens,
        )

    @torch.inference_mode()
    def without_cache() -> None:
        generator = torch.Generator().manual_seed(0)
        tokens = ids
        for _ in range(new_tokens):
            logits = model(tokens, use_cache=False, logits_to_keep=1).logits[:, -1]
            new = torch.multinomial(torch.softmax(logits, -1), 1, generator=generator)
            tokens = torch.cat([tokens, new], dim=1)

    loops: list[tuple[str, Callable[[], None], int]] = [
        ("engine", with_engine, repeats),
        ("generate()", with_generate, repeats),
        ("no cache", without_cache, 1),
    ]
    rates = []
    for name, loop, times in loops:
        best = min(_seconds(loop) for _ in range(times))
        rates.append(
            DecodeRate(
                model=f"hidden {hidden}, {layers} layers",
                loop=name,
                tokens_per_second=round(rows * new_tokens / best),
            )
        )
    return rates


def _seconds(function: Callable[[], None]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def machine() -> str:
    """Processor, cores and threads used."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    name = names[0] if names else platform.processor() or platform.machine()
    return f"{name}, {len(names)} cores, {torch.get_num_threads()} torch thread(s)"


def print_turns(reused: list[TurnCost], repeated: list[TurnCost]) -> None:
    print("             kept between turns          forwarded again")
    print("turn  context    forwarded  seconds    forwarded  seconds")
    for kept, again in zip(reused, repeated, strict=True):
        print(
            f"{kept.turn:4d} {kept.context_tokens:8d}   {kept.forwarded_tokens:10d} "
            f"{kept.seconds:8.3f}   {again.forwarded_tokens:10d} {again.seconds:8.3f}"
        )
    totals = [
        (sum(cost.forwarded_tokens for cost in costs), sum(cost.seconds for cost in costs))
        for costs in (reused, repeated)
    ]
    print(
        f" all            {totals[0][0]:10d} {totals[0][1]:8.3f}   {totals[1][0]:10d} "
        f"{totals[1][1]:8.3f}   ({totals[1][1] / totals[0][1]:.2f} times the seconds)"
    )


def quickest(runs: list[list[TurnCost]]) -> list[TurnCost]:
    """Turn by turn the quickest of several equal rollouts."""
    return [min(costs, key=lambda cost: cost.seconds) for costs in zip(*runs, strict=True)]


def main() -> None:
    args = read_options(__doc__, turns=10, rows=64, threads=1, repeats=2, json=False)
    torch.set_num_threads(args.threads)

    rates = [
        rate
        for hidden, layers in ((64, 2), (128, 4))
        for rate in decode_rates(hidden, layers, rows=args.rows, repeats=args.repeats + 1)
    ]
    model = random_model(128, 4)
    reused, repeated = (
        quickest(
            [
                rollout(model, rows=args.rows, turns=args.turns, reuse=reuse)
                for _ in range(args.repeats)
            ]
        )
        for reuse in (True, False)
    )
    if args.json:
        result = {
            "machine": machine(),
            "rows": args.rows,
            "decode": [asdict(rate) for rate in rates],
            "reused": [asdict(cost) for cost in reused],
            "repeated": [asdict(cost) for cost in repeated],
        }
        print(json.dumps(result))
        return
    print(machine())
    for rate in rates:
        print(f"{rate.model:22s} {rate.loop:12s} {rate.tokens_per_second:8.0f} tokens/s")
    print()
    print_turns(reused, repeated)


if __name__ == "__main__":
    main()
