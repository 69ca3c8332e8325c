"""Players that do not solve the task: what each of them earns beside the expert.

Each plays the same tasks within the limits, as a policy would. The penalty for malformed replies
does not count here: it is the run's, not the world's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..base import TextEnv
from ..pool import turns_of
from ..turns.turn import TurnEnv
from ..turns.wrappers import runner_of
from .episodes import JUNK
from .measure import noise_seed_of, steps_after_the_end
from .subject import Subject, expect

CHEAT_SEEDS = range(8)
EXPERT, RANDOM = "expert", "random"
"""Those who do not cheat: the expert, and a player of random legal actions."""
LATE = "after the end"
"""What is earned by actions after the end of an episode, beside what the episode earned."""
_CHEATS_SUCCEED = 0.5
"""Share of tasks that a cheat must not solve."""
_NUM_REPEATED = 3
_EVERYTHING = " ".join(["A B C D E yes no", *map(str, range(-20, 200))])
"""A reply that names what may be right somewhere."""

Player = Callable[[TextEnv, str, np.random.Generator], Sequence[str]]
"""(world, what it has said, random numbers) -> the actions of a turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayerScore:
    """What a player earned on average and at best, and on what share of tasks it succeeded."""

    mean: float
    best: float
    success: float


def scores_of(subject: Subject) -> dict[str, PlayerScore]:
    """The score of each player; without an expert, or legal actions, those are left out."""
    world = subject.make()
    world.reset(CHEAT_SEEDS[0], CHEAT_SEEDS[0])
    solution, legal = world.solve(), world.legal_actions()
    repeated = (legal or solution or ())[:_NUM_REPEATED]
    players: dict[str, list[Player]] = {
        "echo": [lambda env, text, rng: [text]],
        "empty": [lambda env, text, rng: []],
        "everything": [lambda env, text, rng: [_EVERYTHING]],
        "junk": [lambda env, text, rng: [JUNK[int(rng.integers(len(JUNK)))]]],
        "repeat": [partial(_repeat, action) for action in repeated],
    }
    if legal:
        players[RANDOM] = [_random]
    if solution is not None:
        players[EXPERT] = [lambda env, text, rng: env.solve() or []]
    stack = turns_of(subject.group())
    try:
        most = subject.max_actions_per_turn
        scores = {
            name: max((_score(stack, way, most) for way in ways), key=lambda score: score.mean)
            for name, ways in players.items()
            if ways
        }
    finally:
        stack.close()
    late = [[result.reward for _, result in steps_after_the_end(world, s)] for s in CHEAT_SEEDS]
    totals = [sum(rewards) for rewards in late if rewards]
    if totals:
        mean = sum(totals) / len(totals)
        scores[LATE] = PlayerScore(mean=mean, best=max(totals), success=0.0)
    return scores


def failed_search(subject: Subject) -> str:
    """What the server of a world answers the expert's first search; "" where it does not fail."""
    world = subject.make()
    try:
        world.reset(CHEAT_SEEDS[0], CHEAT_SEEDS[0])
        plan = world.solve()
        result = world.step(plan[0]) if plan else None
    finally:
        world.close()
    if result is None or not result.info.get("search_failed"):
        return ""
    return f"{subject.params.get('url')}: {result.observation.text.splitlines()[0]}"


def expect_solvable(scores: Mapping[str, PlayerScore], *, reports_success: bool) -> None:
    """The expert, if there is one, solves a task."""
    expert = scores.get(EXPERT)
    expect(
        expert is None or not reports_success or expert.success > 0,
        f"the expert, asked before every turn, solved 0 of {len(CHEAT_SEEDS)} tasks within the "
        "limits",
    )


def expect_no_cheat(scores: Mapping[str, PlayerScore]) -> None:
    """No cheat solves half of the tasks, or earns on average more than the expert at best."""
    expert = scores.get(EXPERT)
    for name, score in scores.items():
        if name in (EXPERT, RANDOM):
            continue
        told = f"the cheat {name!r} earns {score.mean:.3g} on average"
        is_solver = name != "repeat" and score.success >= _CHEATS_SUCCEED
        expect(not is_solver, f"{told} and succeeds on {score.success:.0%} of the tasks")
        expect(
            expert is None or score.mean <= 0 or score.mean <= expert.best,
            f"{told}, the expert at best {expert.best if expert else 0:.3g}",
        )


def _repeat(action: str, env: TextEnv, text: str, rng: np.random.Generator) -> Sequence[str]:
    return [action]


def _random(env: TextEnv, text: str, rng: np.random.Generator) -> Sequence[str]:
    legal = env.legal_actions()
    return [legal[int(rng.integers(len(legal)))]] if legal else []


def _score(stack: TurnEnv, player: Player, max_actions: int) -> PlayerScore:
    returns, successes = [], []
    for seed in CHEAT_SEEDS:
        text, total, result = stack.reset(seed, noise_seed_of(seed)).text, 0.0, None
        rng = np.random.default_rng(seed)
        while result is None or result.stop_reason is None:
            actions = player(runner_of(stack).env, text, rng)
            result = stack.step_turn(actions[:max_actions], True)
            text, total = result.observation.text, total + result.reward
        returns.append(total)
        successes.append(result.success is True)
    return PlayerScore(
        mean=sum(returns) / len(returns), best=max(returns), success=sum(successes) / len(successes)
    )
