"""What an environment is like to play: how often its expert succeeds, and how fast it steps."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..base import EnvUnavailableError, StepResult, TextEnv
from ..pool import turns_of
from ..settings import EnvGroup
from ..turns.turn import TurnEnv
from ..turns.wrappers import runner_of
from .episodes import EPISODE_ACTIONS, JUNK

_MAX_PLANS = 50
"""Plans of an expert, or of forty random actions, after which an episode does not end."""
STEPPING_S = 0.2
"""Seconds of stepping that a speed is read from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertScore:
    """On how many tasks the scripted expert succeeded within the limits."""

    num_solved: int
    num_tried: int


def noise_seed_of(seed: int) -> int:
    """Of the task that a seed draws; equal seeds would give both the same random numbers."""
    return seed + 1_000_003


def expert_score(group: EnvGroup, seeds: Iterable[int]) -> ExpertScore | None:
    """Plays the tasks of `seeds` with the expert, who is asked again before every turn.

    None if the environment has no expert:
    `solve()` is None at the start of every episode.

    Raises:
        EnvUnavailableError: an episode cannot start.
        EnvError: an unknown environment, or wrong parameters.
    """
    stack, most = turns_of(group), group.settings().max_actions_per_turn
    num_solved = num_tried = 0
    has_expert = False
    try:
        for seed in seeds:
            stack.reset(seed, noise_seed_of(seed))
            if (error := runner_of(stack).error) is not None:
                raise EnvUnavailableError(f"{group.env}, seed {seed}: {error}")
            has_expert = has_expert or runner_of(stack).env.solve() is not None
            num_tried += 1
            num_solved += has_expert and _play_expert(stack, most)
    finally:
        stack.close()
    return ExpertScore(num_solved=num_solved, num_tried=num_tried) if has_expert else None


def has_expert(group: EnvGroup) -> bool:
    """Whether the scripted expert of an environment sees a way at the first task.

    Raises:
        EnvError: an unknown environment, or wrong parameters.
    """
    stack = turns_of(group)
    try:
        stack.reset(0, 0)
        return runner_of(stack).error is None and runner_of(stack).env.solve() is not None
    except Exception:  # noqa: BLE001 - an expert that raises demonstrates nothing
        return False
    finally:
        stack.close()


def _play_expert(stack: TurnEnv, max_actions: int) -> bool:
    while moves := runner_of(stack).env.solve():
        result = stack.step_turn(moves[:max_actions], True)
        if result.stop_reason is not None:
            return result.success is True
    return False


def steps_per_second(env: TextEnv, seconds: float = STEPPING_S) -> float:
    """Steps per second of wall clock; resets and the expert's thinking do not count.

    The expert's actions are stepped, or random legal ones where there is no expert.

    Args:
        env: a world that can start.
        seconds: of stepping, at least one action.
    """
    num_steps, stepped_s = 0, 0.0
    for seed in itertools.count():
        env.reset(seed, noise_seed_of(seed))
        for action in typical_actions(env, seed):
            start = time.perf_counter()
            result = env.step(action)
            stepped_s += time.perf_counter() - start
            num_steps += 1
            if stepped_s > seconds:
                return num_steps / stepped_s
            if result.terminated:
                break
    raise AssertionError("seeds do not end")


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
