"""Does `torch.compile` pay on the CPU? Forward and backward of the trunk, and a decoding step.

Eager and compiled by the default backend, on the shipped policy and on a model folder (SmolLM2).
Rows are padded and of one shape, which suits a compiler best: the update itself packs rows of any
length. Seconds are processor time of one thread, medians; compiling counts child processes too.

    python benchmarks/compile.py [--model PATH] [--json]
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from common import describe_machine, print_json, read_options
from transformers import AutoModelForCausalLM, StaticCache

from echoscope.core.pretrained.policy_assets import resolve_model

Step = Callable[[], None]


def processor_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def measure(step: Step, repeats: int) -> tuple[float, float]:
    """(seconds of the first call, median of later ones)."""
    seconds = []
    for _ in range(repeats + 1):
        started = processor_seconds()
        step()
        seconds.append(processor_seconds() - started)
    return seconds[0], statistics.median(seconds[1:])


def update_step(model: Any, rows: int, width: int) -> Callable[[Any], Step]:
    ids = torch.randint(0, model.config.vocab_size, (rows, width))

    def of(trunk: Any) -> Step:
        def step() -> None:
            out = trunk(input_ids=ids, use_cache=False).last_hidden_state
            out.square().mean().backward()
            model.zero_grad()

        return step

    return of


def decoding_step(model: Any, rows: int, columns: int) -> Callable[[Any], Step]:
    token = torch.randint(0, model.config.vocab_size, (rows, 1))
    position = torch.full((rows, 1), columns - 1)

    def of(trunk: Any) -> Step:
        cache = StaticCache(config=model.config, max_cache_len=columns)

        @torch.no_grad()
        def step() -> None:
            trunk(input_ids=token, position_ids=position, past_key_values=cache, use_cache=True)
            cache.reset()

        return step

    return of


def compare(name: str, path: str, rows: int, width: int, repeats: int) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    out = []
    for what, make in (
        (f"update, {rows} x {width}", update_step(model, rows, width)),
        (f"decoding, {rows} rows of {width}", decoding_step(model, rows, width)),
    ):
        torch.compiler.reset()
        _, eager = measure(make(model.base_model), repeats)
        first, compiled = measure(make(torch.compile(model.base_model)), repeats)
        saved = eager - compiled
        out.append(
            {
                "model": name,
                "what": what,
                "eager_s": eager,
                "compiled_s": compiled,
                "ratio": eager / compiled,
                "compiling_s": first - compiled,
                "pays_after": (first - compiled) / saved if saved > 0 else None,
            }
        )
        print(json.dumps(out[-1]), flush=True)
    return out


def main() -> None:
    arguments = read_options(
        __doc__,
        model=(str, "a folder beside the shipped policy, such as SmolLM2"),
        json=(False, "one object in the end"),
    )
    torch.set_num_threads(1)
    rows = compare("shipped policy", resolve_model("tiny"), 16, 64, 20)
    if arguments.model:
        rows += compare(arguments.model.rstrip("/").rpartition("/")[2], arguments.model, 4, 64, 3)
    if arguments.json:
        print_json(rows=rows)
    else:
        print(describe_machine())


if __name__ == "__main__":
    main()
