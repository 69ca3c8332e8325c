"""AdamW with float32 and with 8-bit moments: bytes kept and processor seconds of a step.

Twelve matrices of 512 x 768 in float32, one thread, the best of ten steps. The 8-bit row needs
bitsandbytes (`pip install -e '.[8bit]'`).

    python benchmarks/optimizer_states.py [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from machine import describe_machine
from torch import nn

from echoscope.core.config.settings import OptimConfig
from echoscope.core.optim import Optimizer, ParameterGroup


def measure(states: str) -> dict[str, float]:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(512, 768) * 0.02) for _ in range(12)]
    config = OptimConfig.model_validate({"states": states, "lr": 1e-4})
    optimizer = Optimizer([ParameterGroup(name="policy", parameters=weights)], config)
    seconds = []
    for _ in range(10):
        for weight in weights:
            weight.grad = torch.randn_like(weight) * 1e-2
        started = time.process_time()
        optimizer.step(lrs={"policy": 1e-4}, grad_clip=1e9)
        seconds.append(time.process_time() - started)
    count = sum(weight.numel() for weight in weights)
    kept = sum(tensor.nbytes for tensor in optimizer.state_tensors().values())
    return {"bytes_a_weight": kept / count, "ms_a_million_weights": min(seconds) / count * 1e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {states: measure(states) for states in ("float32", "8bit")}
    if arguments.json:
        print(json.dumps({"machine": describe_machine(), "rows": rows}))
        return
    print(describe_machine())
    for states, row in rows.items():
        print(states, *(f"{name} {value:.3g}" for name, value in row.items()))


if __name__ == "__main__":
    main()
