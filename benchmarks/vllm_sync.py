"""Weight sync of the shipped policy to vLLM: in this process, and in a server process.

Needs the environment of `make test-vllm`:

    .venv-vllm/bin/python benchmarks/vllm_sync.py

A sync is `engine.sync_weights`: the weights go over, the prefix cache is emptied, and a tied
output embedding is packed again.
"""

from __future__ import annotations

import os
import statistics
import time
from types import SimpleNamespace

import torch
from peft import LoraConfig, get_peft_model

from echoscope.core.config.engine import VllmEngineConfig
from echoscope.core.config.settings import ModelConfig
from echoscope.core.engines.base import Engine
from echoscope.core.engines.vllm.server import VllmEngine
from echoscope.core.policy import load_model
from echoscope.core.pretrained.policy_assets import resolve_model

ROUNDS = 20
POSITIONS = 512


def measure(name: str, engine: Engine, model: object) -> None:
    times = []
    for version in range(1, ROUNDS + 2):
        with torch.no_grad():
            for parameter in model.parameters():  # type: ignore[attr-defined]
                parameter.mul_(1.0001)
        started = time.perf_counter()
        engine.sync_weights(SimpleNamespace(model=model, version=version))
        times.append(1000 * (time.perf_counter() - started))
    times = times[1:]
    print(f"| {name} | {statistics.median(times):.0f} | {min(times):.0f} | {max(times):.0f} |")
    engine.close()


def main() -> None:
    config, folder = ModelConfig(device="cpu"), resolve_model("tiny")
    model = load_model("tiny", config)
    number = sum(parameter.numel() for parameter in model.parameters())
    load = os.getloadavg()[0]
    print(
        f"{number / 1e6:.2f} million parameters in float32, {os.cpu_count()} cores, "
        f"{torch.get_num_threads()} torch threads, load {load:.1f}, {ROUNDS} syncs each\n"
    )
    print("| route | median ms | least ms | most ms |\n| --- | --- | --- | --- |")
    small = VllmEngineConfig(kv_cache_gib=0.125, max_batch_rows=32)
    measure("whole model", VllmEngine(model, folder, config=small, positions=POSITIONS), model)
    lora = get_peft_model(load_model("tiny", config), LoraConfig(r=8, target_modules="all-linear"))
    measure("LoRA of rank 8", VllmEngine(lora, folder, config=small, positions=POSITIONS), lora)


if __name__ == "__main__":
    main()
