"""Runs that another trainer recorded, whose true success rate is known at every step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from echoscope.recorder.recorder import Recorder

EPISODES, STEPS = 64, 60


def _risen(step: int) -> float:
    return 0.1 + 0.7 * min(step / 40, 1)


COURSES: Mapping[str, Callable[[int], float]] = {
    "flat": lambda step: 0.5,
    "rose": _risen,
    "collapsed": lambda step: 0.7 if step <= 30 else 0.02,
    "crashed": _risen,
    "recovering": lambda step: 0.8 if step <= 25 else 0.1 + 0.5 * max(step - 35, 0) / 25,
}
"""The true success rate at each step."""


def record(root: Path, name: str) -> None:
    """Record a run of `COURSES`, of 64 episodes a step. The one called `crashed` does not return:
    its process dies without a word."""
    rng = np.random.default_rng(list(COURSES).index(name))
    recorder = Recorder(root / name)
    for step in range(1, STEPS + 1):
        noise = rng.normal(0, 0.02, size=3)
        numbers = {
            "rollout/success_rate": rng.binomial(EPISODES, COURSES[name](step)) / EPISODES,
            "rollout/num_episodes": EPISODES,
            "policy/entropy": 1.0 + noise[0],
            "rollout/action_valid_frac": 0.95 + noise[1] / 10,
            "optim/grad_norm": 0.5 + noise[2],
        }
        recorder.step(step, numbers)
    if name == "crashed":
        assert recorder.flush()
        os._exit(1)
    recorder.close()
