"""How long the calls of `echoscope.Recorder` keep the caller.

    python benchmarks/recorder_calls.py [--steps 60] [--json]

64 episodes of six messages (about 4,000 characters) a step, and a step with 60 numbers. Between
steps the caller sleeps for 0.2 s, in which a trainer would train.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from echoscope.recorder.recorder import Recorder

EPISODES, METRICS, PAUSE_S = 64, 60, 0.2


def timed(call: Callable[[], None]) -> float:
    """Microseconds."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1e6


def measure(steps: int) -> dict[str, float]:
    messages = [
        {"role": "user", "content": "x" * 500},
        {"role": "assistant", "content": "y" * 800},
    ] * 3
    metrics = {f"metric_{i}": i / 7 for i in range(METRICS)}
    episodes, ends = [], []
    with tempfile.TemporaryDirectory() as folder:
        with Recorder(Path(folder) / "run", on_message=lambda text: None) as recorder:
            for step in range(1, steps + 1):
                for i in range(EPISODES):
                    reward, group = float(i % 3), i // 8
                    episodes.append(
                        timed(lambda r=reward, g=group: recorder.episode(messages, r, group=g))
                    )
                ends.append(timed(lambda s=step: recorder.step(s, metrics)))
                time.sleep(PAUSE_S)
        lost = recorder.num_lost
    return {
        "episode_p50_us": float(np.median(episodes)),
        "episode_p99_us": float(np.quantile(episodes, 0.99)),
        "step_p50_us": float(np.median(ends)),
        "step_max_us": float(np.max(ends)),
        "lost": lost,
        "load": os.getloadavg()[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.steps)
    if options.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:<16} {value:.1f}")


if __name__ == "__main__":
    main()
