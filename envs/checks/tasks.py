"""Does the task key name the task, and does `num_tasks` count the tasks?"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

from ..base import Observation, TextEnv, is_task_key, shorten
from ..reserving import SURVEY_SEEDS
from .episodes import plan, play
from .subject import Subject, expect, key_of

_MIN_EQUAL_PAIRS = 8
"""Pairs of equal tasks from which on their number is counted."""
_TOO_MANY = 8
"""How many times more tasks may be promised than were counted: draws need not be even."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """One task of the survey."""

    seed: int
    first: Observation
    solution: tuple[str, ...] | None


def check_tasks(subject: Subject) -> None:
    """The key names the task: same for the same task, another for another, nothing else in it."""
    env, other = subject.make(), subject.make()
    drawn: dict[str, list[_Drawn]] = defaultdict(list)
    declares = [_surveyed(env, other, seed, drawn) for seed in SURVEY_SEEDS]
    expect(len({*declares}) == 1, "task_key() is None only sometimes")
    for same in drawn.values():
        _expect_one_task(env, same, declares_key=declares[0])
    _expect_no_second_key(env, drawn)
    _expect_their_number(env.num_tasks, [len(same) for same in drawn.values()], declares[0])


def _surveyed(env: TextEnv, other: TextEnv, seed: int, drawn: dict[str, list[_Drawn]]) -> bool:
    """Draw one task; whether the world has given its key itself."""
    first = env.reset(seed, 0)
    given = env.task_key()
    expect(
        given is None or is_task_key(given),
        f"task_key() returned {shorten(repr(given))}, but must return what hash_task returns",
    )
    other.reset(seed, 1)
    expect(
        other.task_key() == given, f"seed {seed}: the key depends on the instance or on the noise"
    )
    key, solution = key_of(env, first), env.solve()
    drawn[key].append(
        _Drawn(seed=seed, first=first, solution=None if solution is None else tuple(solution))
    )
    for action in plan(env, seed)[:3]:
        env.step(action)
    expect(env.task_key() == given, f"seed {seed}: the key changes during the episode")
    return given is not None


def _expect_one_task(env: TextEnv, same: list[_Drawn], *, declares_key: bool) -> None:
    """All tasks of one key begin alike, have one solution and are played alike."""
    advice = "" if declares_key else " (task_key() is None, so the first text is the key)"
    for task in same[1:]:
        seeds = f"seeds {same[0].seed} and {task.seed}"
        expect(
            task.first == same[0].first,
            f"{seeds}: two tasks with different first observations have the same key{advice}",
        )
        expect(
            task.solution == same[0].solution,
            f"{seeds}: two tasks with different solutions have the same key{advice}",
        )
    if len(same) > 1 and not _is_noisy(env, same[0].seed):
        env.reset(same[0].seed, 0)
        actions = plan(env, 0)
        expect(
            _episode(env, same[0].seed, actions) == _episode(env, same[1].seed, actions),
            f"seeds {same[0].seed} and {same[1].seed}: two tasks with the same key answer the same "
            f"actions differently{advice}",
        )


def _expect_no_second_key(env: TextEnv, drawn: dict[str, list[_Drawn]]) -> None:
    """No two keys stand for tasks that look, solve and play alike."""
    alike: dict[tuple[Observation, Any], tuple[str, _Drawn]] = {}
    for key, same in drawn.items():
        task = same[0]
        if task.solution is None:
            continue  # what is hidden may differ
        known_key, known = alike.setdefault((task.first, task.solution), (key, task))
        if known_key == key:
            continue
        env.reset(task.seed, 0)
        actions = plan(env, 0)
        expect(
            _episode(env, task.seed, actions) != _episode(env, known.seed, actions),
            f"seeds {known.seed} and {task.seed} draw the same task with different keys, so "
            "evaluation tasks are trained on: the key must name the first state alone",
        )


def _expect_their_number(declared: Any, counts: list[int], declares_key: bool) -> None:
    """`num_tasks` is not less than was drawn, and not far more than the repeats allow."""
    if declared is None:
        return
    num_drawn = len(counts) if declares_key else 1
    expect(
        type(declared) is int and declared >= num_drawn,
        f"num_tasks is {declared!r}, but {num_drawn} different tasks were drawn",
    )
    equal = sum(n * (n - 1) // 2 for n in Counter(dict(enumerate(counts))).values())
    pairs = sum(counts) * (sum(counts) - 1) // 2
    expect(
        equal < _MIN_EQUAL_PAIRS or declared <= _TOO_MANY * pairs / equal,
        f"num_tasks is {declared}, but {sum(counts)} draws gave only {len(counts)} different "
        f"tasks: there are about {pairs / max(1, equal):.0f}",
    )


def _is_noisy(env: TextEnv, seed: int) -> bool:
    """Whether the noise changes an episode of this task."""
    env.reset(seed, 0)
    actions = plan(env, seed)
    return any(
        _episode(env, seed, actions, noise) != _episode(env, seed, actions) for noise in (1, 2)
    )


def _episode(env: TextEnv, seed: int, actions: list[str], noise_seed: int = 0) -> list[Any]:
    return play(env, seed, noise_seed, actions)
