"""How long the calls of `echoscope.Recorder` keep the caller.

    python benchmarks/recorder_calls.py [--steps 60] [--json]

64 episodes of six messages (about 4,000 characters) a step, and a step with 60 numbers. Between
steps the caller sleeps for 0.2 s, in which a trainer would train.
"""

from __future__ import annotations

import json
import os
import time
from functools import partial

import numpy as np
from common import read_options, seconds_of, temporary_folder

from echoscope.recorder.recorder import Recorder

EPISODES, METRICS, PAUSE_S = 64, 60, 0.2


def measure(steps: int) -> dict[str, float]:
    messages = [
        {"role": "user", "content": "x" * 500},
        {"role": "assistant", "content": "y" * 800},
    ] * 3
    metrics = {f"metric_{i}": i / 7 for i in range(METRICS)}
    episodes, ends = [], []
    with temporary_folder() as folder:
        with Recorder(folder / "run", on_message=lambda text: None) as recorder:
            for step in range(1, steps + 1):
                for i in range(EPISODES):
                    reward, group = float(i % 3), i // 8
                    record = partial(recorder.episode, messages, reward, group=group)
                    episodes.append(1e6 * seconds_of(record))
                ends.append(1e6 * seconds_of(partial(recorder.step, step, metrics)))
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
    options = read_options(__doc__, steps=60, json=False)
    measured = measure(options.steps)
    if options.json:
        print(json.dumps(measured))
        return
    for name, value in measured.items():
        print(f"{name:<16} {value:.1f}")


if __name__ == "__main__":
    main()
