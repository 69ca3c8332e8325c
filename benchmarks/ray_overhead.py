"""What Ray costs over the engine that it wraps: the same calls with and without it, in one run.

Both engines sample the same multi-turn conversations of the same model: every call's prompts
continue the replies of the call before. Both have one engine and one thread, and their samples are
equal, so the difference is Ray: sending prompts and replies between processes. Repeats alternate,
and the quickest of each counts. On a busy machine trust processor time: that of this process and of
every process of Ray, idle ones included. The cost of new weights is printed apart: the built-in
engine needs none, because it samples from the trained weights themselves.

    pip install 'ray==2.60.0'
    python benchmarks/ray_overhead.py [--model tiny] [--rows 64] [--turns 4] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from machine import describe_machine
from transformers import PreTrainedModel

from echoscope.core.config.engine import HfEngineConfig, RayEngineConfig
from echoscope.core.config.settings import ModelConfig
from echoscope.core.engines.base import GenerationEngine, SamplingParams
from echoscope.core.engines.hf.engine import HfEngine
from echoscope.core.engines.ray.engine import RayEngine
from echoscope.core.engines.ray.guard import processes_of
from echoscope.core.engines.ray.session import SESSION
from echoscope.core.policy import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """The model that a policy would have."""

    model: PreTrainedModel
    version: int


def processor_s() -> float:
    """Processor seconds of this process and of all processes of its Ray so far."""
    ticks = 0
    for pid in processes_of(SESSION.folder):
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def play(
    engine: GenerationEngine, vocabulary: int, *, rows: int, turns: int, new_tokens: int
) -> tuple[list[float], list[list[int]]]:
    """Seconds of each turn, and the replies of the last."""
    generator = np.random.default_rng(0)
    prompts = [generator.integers(0, vocabulary, 64).astype(np.int32) for _ in range(rows)]
    params = SamplingParams(max_new_tokens=new_tokens)
    seconds: list[float] = []
    replies: list[list[int]] = []
    for turn in range(turns):
        begun = time.perf_counter()
        samples = engine.generate(prompts, params, seeds=range(turn * rows, (turn + 1) * rows))
        seconds.append(time.perf_counter() - begun)
        replies = [sample.tokens.tolist() for sample in samples]
        feedback = generator.integers(0, vocabulary, 16).astype(np.int32)
        prompts = [
            np.concatenate([prompt, sample.tokens, feedback])
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
    engine.release_memory()
    return seconds, replies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(arguments.model, ModelConfig(path=arguments.model, device="cpu"))
    vocabulary = int(model.get_input_embeddings().num_embeddings)
    sizes = {key: getattr(arguments, key) for key in ("rows", "turns", "new_tokens")}
    policy = Sampled(model=model, version=1)
    plain = HfEngine(model, config=HfEngineConfig(), policy_version=1)
    begun = time.perf_counter()
    ray = RayEngine(policy, RayEngineConfig(num_engines=1))
    start_s = time.perf_counter() - begun
    best: dict[str, list[list[float]]] = {"hf": [], "ray": []}
    spent: dict[str, list[float]] = {"hf": [], "ray": []}
    try:
        for _ in range(arguments.repeats):
            replies = {}
            for name, engine in (("hf", plain), ("ray", ray)):
                before = processor_s()
                seconds, replies[name] = play(engine, vocabulary, **sizes)
                spent[name].append(processor_s() - before)
                best[name].append(seconds)
            if replies["hf"] != replies["ray"]:
                raise RuntimeError("the two engines sampled different replies")
        syncs = []
        for _ in range(5):
            begun = time.perf_counter()
            ray.sync_weights(policy)
            syncs.append(time.perf_counter() - begun)
    finally:
        ray.close()
    quickest = {name: np.min(np.array(runs), axis=0) for name, runs in best.items()}
    overhead = float(quickest["ray"].sum() / quickest["hf"].sum() - 1)
    processor_overhead = min(spent["ray"]) / min(spent["hf"]) - 1
    result = {
        "machine": describe_machine(),
        "model": arguments.model,
        **sizes,
        "hf_call_s": [round(float(s), 3) for s in quickest["hf"]],
        "ray_call_s": [round(float(s), 3) for s in quickest["ray"]],
        "hf_processor_s": round(min(spent["hf"]), 2),
        "ray_processor_s": round(min(spent["ray"]), 2),
        "overhead": round(overhead, 4),
        "processor_overhead": round(processor_overhead, 4),
        "sync_s": round(min(syncs), 4),
        "start_s": round(start_s, 1),
    }
    if arguments.json:
        print(json.dumps(result))
        return
    for key, value in result.items():
        print(f"{key:18} {value}")
    print(
        f"Ray costs {overhead:+.1%} over the engine it wraps, "
        f"{processor_overhead:+.1%} of processor time"
    )


if __name__ == "__main__":
    main()
