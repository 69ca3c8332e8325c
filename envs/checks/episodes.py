"""Episodes that every environment can play: what the checks compare and hash."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from .. import registry
from ..base import Observation, StepResult, TextEnv

SEEDS = (0, 1, 2, 12345, 2**62 + 7)
EPISODE_ACTIONS = 40
_MAX_PLANS = 50
"""Plans of an expert, or of forty random actions, after which an episode does not end."""
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
    "9" * MEGABYTE,
    "\u0130" * 100_000,  # grows when its case is folded
    # Brackets that close wrongly, late or never: no parser may recurse through them.
    "]})([{",
    "(" * 10_000 + "1" + ")" * 10_000,
    "(" * MEGABYTE,
    '{"a":' * (MEGABYTE // 5),
    "\\frac{" * 50_000,
    "\\boxed{" * 100_000,
    "search[" * 100_000,
    "click[[" + "]" * 100_000,
    # Numbers and operators.
    "-" * 100_000 + "1",
    "not " * 100_000,
    "1+" * (MEGABYTE // 2) + "1",
    "1e999",
    "\u0661\u0662+\u0663",  # digits of another script
    "\u00b2\u2460\uff11",  # what only looks like digits
    # Code where an expression, an answer or a program is expected.
    "(lambda: 0).__class__.__mro__",
    "import os\nprint(open('../../../../etc/passwd').read())",
    "../" * 10_000 + "etc/passwd",
    # Tool calls that are none.
    "<tool_call>" * 50_000,
    'lookup {"item": ' + "[" * 50_000,
    # What terminals, files and columns stumble over.
    "up\x00",
    "".join(map(chr, range(32))),
    "\x1b[2J\x1b]0;title\x07\x1b[31mup",
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


def play(
    env: TextEnv,
    seed: int,
    noise_seed: int,
    actions: Sequence[str],
    before_each: Callable[[int], None] = lambda number: None,
) -> list[Observation | StepResult]:
    """One episode: the first observation and the results up to termination.

    Args:
        before_each: called with the number of each action, counted from 0, before it is played.
    """
    out: list[Observation | StepResult] = [env.reset(seed, noise_seed)]
    for number, action in enumerate(actions):
        before_each(number)
        result = env.step(action)
        # The order of `info` is nobody's business, but would change a digest.
        out.append(replace(result, info=dict(sorted(result.info.items()))))
        if result.terminated:
            break
    return out


def noise_seed_of(seed: int) -> int:
    """Of the task that a seed draws; equal seeds would give both the same random numbers."""
    return seed + 1_000_003


def typical_actions(env: TextEnv, seed: int) -> list[str]:
    """The expert's actions from here, or else random legal ones."""
    legal = env.legal_actions() or ("wait",)
    rng = np.random.default_rng(seed)
    return env.solve() or [legal[int(i)] for i in rng.integers(len(legal), size=EPISODE_ACTIONS)]


def steps_after_the_end(env: TextEnv, seed: int) -> list[tuple[str, StepResult]]:
    """What junk and once sensible actions give when the episode is over; [] if it does not end."""
    env.reset(seed, noise_seed_of(seed))
    sensible = typical_actions(env, seed)[:3]
    for _ in range(_MAX_PLANS):
        for action in typical_actions(env, seed):
            if env.step(action).terminated:
                return [(late, env.step(late)) for late in dict.fromkeys([*JUNK, *sensible])]
    return []


def digest(env: TextEnv) -> str:
    """Hash of fixed episodes: equal in every process if the environment is deterministic."""
    sha = hashlib.sha256()
    for seed in SEEDS:
        env.reset(seed, seed)
        episode = [*play(env, seed, seed ^ 1, plan(env, seed)), env.task_key()]
        sha.update(repr(episode).encode("utf-8", "backslashreplace"))
    return sha.hexdigest()


def digest_main() -> None:
    """Entry of the child process: reads {path, entry_point, params} from standard input."""
    request = json.loads(sys.stdin.read())
    sys.path[:0] = [entry for entry in request["path"] if entry not in sys.path]
    sys.stdout.write(digest(registry.make(request["entry_point"], **request["params"])))
