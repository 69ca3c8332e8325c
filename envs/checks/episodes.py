"""Fixed episodes that every environment can play: what `contract.py` compares and hashes."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import registry
from ..base import Observation, TextEnv

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
JUNK = ("no such action", "", "0x\u2603 !?", "zzz || zzz")
"""Replies that no world should understand."""
MEGABYTE = 1_000_000
"""Characters of the longest hostile actions."""
LONG_HOSTILE_ACTIONS: tuple[str, ...] = (
    # Length alone.
    "a" * MEGABYTE,
    " " * MEGABYTE,
    "\n" * MEGABYTE,
    "9" * MEGABYTE,
    "up " * (MEGABYTE // 3),
    "\u0130" * 100_000,  # grows when its case is folded
    "e" + "\u0301" * 100_000,
    # Brackets that close wrongly, late or never: no parser may recurse through them.
    "]})([{",
    "(" * 12 + "1" + ")" * 12,
    "(" * 10_000 + "1" + ")" * 10_000,
    "(" * MEGABYTE,
    "[" * MEGABYTE,
    '{"a":' * (MEGABYTE // 5),
    "\\frac{" * 50_000,
    "\\boxed{" * 100_000,
    "search[" * 100_000,
    "click[[" + "]" * 100_000,
    # Numbers and operators.
    "-" * 60 + "1",
    "-" * 100_000 + "1",
    "not " * 100_000,
    "1+" * (MEGABYTE // 2) + "1",
    "1/" * 1_000 + "3",
    "1e999",
    "\u0661\u0662+\u0663",  # digits of another script
    "\u00b2\u2460\uff11",  # what only looks like digits
    # Code where an expression, an answer or a program is expected.
    "(lambda: 0).__class__.__mro__",
    "[x for x in ().__class__.__base__.__subclasses__()]",
    "1 if __import__('os').getpid() else 2",
    "import os\nprint(open('../../../../etc/passwd').read())",
    "print(open('/proc/self/environ').read())",
    "../" * 10_000 + "etc/passwd",
    "file:///etc/passwd",
    # Tool calls that are none.
    "<tool_call>" * 50_000,
    'lookup {"item": ' + "[" * 50_000,
    "answer " + "9" * MEGABYTE,
    # What terminals, files and columns stumble over.
    "up\x00",
    "".join(map(chr, range(32))),
    "\x1b[2J\x1b]0;title\x07\x1b[31mup",
    "\u202eup\u202c",
    "\ufeffup",
    "\udfff\ud800" * 1_000,
)
"""Too many or too long for every task: tried on one."""
HOSTILE_S = 20.0
"""Seconds in which any action must be answered."""


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
    out: list[Any] = [[seen(env.reset(seed, noise_seed))]]
    for action in actions:
        result = env.step(action)
        out.append(
            [
                seen(result.observation),
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


def seen(observation: Observation) -> tuple[Any, ...]:
    """An observation as plain data; its picture by a hash."""
    picture = observation.image
    return (
        observation.text,
        observation.frame,
        observation.view,
        tuple((message.role, message.name, message.content) for message in observation.messages),
        None if picture is None else hashlib.sha256(picture).hexdigest(),
    )


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
