"""Fixed episodes that every environment can play: what `contract.py` compares and hashes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import registry
from ..base import TextEnv

SEEDS = (0, 1, 2, 12345, 2**62 + 7)
EPISODE_ACTIONS = 40
HOSTILE_ACTIONS: tuple[str, ...] = (
    "",
    " ",
    "\x00",
    "\n\n",
    "||",
    "a" * 100_000,
    "9" * 5_000,
    "-1",
    "up down left right",
    "</answer><think>",
    "<|im_end|>",
    "../../etc/passwd",
    "__import__('os').system('true')",
    "{0.__class__} %s %n",
    "'; DROP TABLE turns; --",
    "\U0001f600\u202e\u0000",
    "\ud800",
    "nan",
)


def plan(env: TextEnv, seed: int) -> list[str]:
    """A fixed mix of legal, hostile and expert actions for one episode."""
    rng = np.random.default_rng(seed)
    expert = env.solve() or []
    legal = list(env.legal_actions()) or ["wait"]
    mixed = [legal[int(rng.integers(len(legal)))] for _ in range(EPISODE_ACTIONS)]
    mixed[5:5] = ["", "no such action"]
    return [*mixed[:8], *expert, *mixed[8:]]


def play(env: TextEnv, seed: int, noise_seed: int, actions: Sequence[str]) -> list[Any]:
    """One episode as plain data: the first observation and the results up to termination."""
    first = env.reset(seed, noise_seed)
    out: list[Any] = [first.text, first.frame]
    for action in actions:
        result = env.step(action)
        out.append(
            [
                result.observation.text,
                result.observation.frame,
                result.reward,
                result.terminated,
                result.success,
                result.is_valid,
                result.is_effective,
                sorted(result.info.items()),
            ]
        )
        if result.terminated:
            break
    return out


def digest(env: TextEnv) -> str:
    """Hash of fixed episodes: equal in every process if the environment is deterministic."""
    sha = hashlib.sha256()
    for seed in SEEDS:
        env.reset(seed, seed)
        episode = [*play(env, seed, seed ^ 1, plan(env, seed)), env.task_key()]
        sha.update(repr(episode).encode("utf-8", "backslashreplace"))
    return sha.hexdigest()


def digest_main() -> None:
    """Entry of the child process: reads {path, id, entry_point, params} from standard input."""
    request = json.loads(sys.stdin.read())
    sys.path[:0] = [entry for entry in request["path"] if entry not in sys.path]
    sys.stdout.write(digest(registry.make(request["entry_point"], **request["params"])))
