"""Does the task key name the task, and does `num_tasks` count the tasks?"""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

from ..base import Observation, TextEnv, hash_task, is_task_key, shorten
from ..reserving import SURVEY_SEEDS, equal_pairs
from .episodes import plan, play
from .subject import Subject, expect

_MIN_EQUAL_PAIRS = 8
"""Pairs of equal tasks from which on their number is counted."""
_TOO_MANY = 8
"""How many times more tasks may be promised than were counted: draws need not be even."""


class _Drawn(NamedTuple):
    """One task of the survey."""

    seed: int
    first: Observation
    solution: tuple[str, ...] | None


def check_tasks(subject: Subject) -> None:
    """The key names the task: same for the same task, another for another, nothing else in it."""
    env, other = subject.make(), subject.make()
    drawn: dict[str, list[_Drawn]] = defaultdict(list)
    declares_key = None
    for seed in SURVEY_SEEDS:
        first, given = env.reset(seed, 0), env.task_key()
        expect(
            given is None or is_task_key(given),
            f"task_key() returned {shorten(repr(given))}, but must return what hash_task returns",
        )
        expect(declares_key in (None, given is not None), "task_key() is None only sometimes")
        declares_key = given is not None
        other.reset(seed, 1)
        told = f"seed {seed}: the key"
        expect(other.task_key() == given, f"{told} depends on the instance or on the noise")
        solution = env.solve()
        key = hash_task(env.spec.id, first.text) if given is None else given
        drawn[key].append(_Drawn(seed, first, None if solution is None else tuple(solution)))
        for action in plan(env, seed)[:3]:
            env.step(action)
        expect(env.task_key() == given, f"{told} changes during the episode")
    for same in drawn.values():
        _expect_one_task(env, same, "" if declares_key else _ADVICE)
    _expect_no_second_key(env, drawn)
    if (declared := env.num_tasks) is not None:
        _expect_their_number(declared, [len(same) for same in drawn.values()])


_ADVICE = " (task_key() is None, so the first text is the key)"


def _expect_one_task(env: TextEnv, same: list[_Drawn], advice: str) -> None:
    """All tasks of one key begin alike, have one solution and are played alike."""
    for task in same[1:]:
        told = f"seeds {same[0].seed} and {task.seed}: two tasks with different"
        is_alike = task.first == same[0].first
        expect(is_alike, f"{told} first observations have the same key{advice}")
        is_alike = task.solution == same[0].solution
        expect(is_alike, f"{told} solutions have the same key{advice}")
    if len(same) > 1 and not _is_noisy(env, same[0].seed):
        expect(
            _episode(env, same[0].seed) == _episode(env, same[1].seed, same[0].seed),
            f"seeds {same[0].seed} and {same[1].seed}: two tasks with the same key answer the same "
            f"actions differently{advice}",
        )


def _expect_no_second_key(env: TextEnv, drawn: dict[str, list[_Drawn]]) -> None:
    """No two keys stand for tasks that look, solve and play alike."""
    alike: dict[tuple[Observation, Any], int] = {}
    for task, *_ in drawn.values():
        if task.solution is None:
            continue  # what is hidden may differ
        earlier = alike.setdefault((task.first, task.solution), task.seed)
        expect(
            earlier == task.seed
            or any(
                _episode(env, task.seed, number=number)
                != _episode(env, earlier, task.seed, number=number)
                for number in range(3)
            ),
            f"seeds {earlier} and {task.seed} draw the same task with different keys, so "
            "evaluation tasks are trained on: the key must name the first state alone",
        )


def _expect_their_number(declared: int, counts: list[int]) -> None:
    """`num_tasks` is not less than was drawn, and not far more than the repeats allow."""
    expect(
        type(declared) is int and declared >= len(counts),
        f"num_tasks is {declared!r}, but {len(counts)} different tasks were drawn",
    )
    equal, pairs = equal_pairs(counts)
    expect(
        equal < _MIN_EQUAL_PAIRS or declared <= _TOO_MANY * pairs / equal,
        f"num_tasks is {declared}, but {sum(counts)} draws gave only {len(counts)} different "
        f"tasks: there are about {pairs / max(1, equal):.0f}",
    )


def _is_noisy(env: TextEnv, seed: int) -> bool:
    """Whether the noise changes an episode of this task."""
    plain = _episode(env, seed)
    return any(_episode(env, seed, noise_seed=noise) != plain for noise in (1, 2))


def _episode(
    env: TextEnv, seed: int, as_in: int | None = None, *, noise_seed: int = 0, number: int = 0
) -> list[Any]:
    """An episode with the actions of a plan that is made for it, or for another task."""
    env.reset(seed if as_in is None else as_in, 0)
    return play(env, seed, noise_seed, plan(env, number))
