"""Players: the scripted expert, one who guesses, and those who do not solve the task.

Each plays the same tasks within the limits, as a policy would. The penalty for malformed replies
does not count here: it is the run's, not the world's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

import numpy as np

from echoscope.text.amounts import percent

from ..base import EnvUnavailableError, TextEnv
from ..pool import turns_of
from ..settings import EnvGroup
from .episodes import JUNK, noise_seed_of, steps_after_the_end
from .subject import Skip, Subject, expect

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
    """What a player earned on average and at best, and on how many of its tasks it succeeded."""

    mean: float
    best: float
    num_solved: int
    num_tried: int

    @property
    def success(self) -> float:
        return self.num_solved / self.num_tried


def expert_moves(env: TextEnv, text: str, rng: np.random.Generator) -> Sequence[str]:
    """The expert, asked again before every turn."""
    return env.solve() or []


def score(group: EnvGroup, player: Player, seeds: Iterable[int]) -> PlayerScore:
    """Play the tasks of `seeds`.

    Raises:
        EnvUnavailableError: an episode cannot start.
        EnvError: an unknown environment, or wrong parameters.
    """
    stack, most = turns_of(group), group.settings().max_actions_per_turn
    returns, num_solved = [], 0
    try:
        for seed in seeds:
            opening = stack.reset(seed, noise_seed_of(seed))
            if opening.error is not None:
                raise EnvUnavailableError(f"{group.env}, seed {seed}: {opening.error}")
            text, total, result = opening.observation.text, 0.0, None
            rng = np.random.default_rng(seed)
            while result is None or result.stop_reason is None:
                actions = player(stack.env, text, rng)
                result = stack.step_turn(actions[:most], True)
                text, total = result.observation.text, total + result.reward
            returns.append(total)
            num_solved += result.success is True
    finally:
        stack.close()
    return PlayerScore(
        mean=sum(returns) / len(returns),
        best=max(returns),
        num_solved=num_solved,
        num_tried=len(returns),
    )


def has_expert(group: EnvGroup) -> bool:
    """Whether the scripted expert of an environment sees a way at the first task.

    Raises:
        EnvError: an unknown environment, or wrong parameters.
    """
    stack = turns_of(group)
    try:
        return stack.reset(0, 0).error is None and stack.env.solve() is not None
    except Exception:  # noqa: BLE001 - an expert that raises demonstrates nothing
        return False
    finally:
        stack.close()


def scores_of(subject: Subject) -> Mapping[str, PlayerScore]:
    """The score of each player; without an expert, or legal actions, those are left out."""
    if not subject.scores:
        subject.scores.update(_played(subject))
    return subject.scores


def _played(subject: Subject) -> dict[str, PlayerScore]:
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
        RANDOM: [_random] if legal else [],
        EXPERT: [expert_moves] if solution is not None else [],
    }
    scores = {
        name: max((score(subject.group, way, CHEAT_SEEDS) for way in ways), key=attrgetter("mean"))
        for name, ways in players.items()
        if ways
    }
    late = [[result.reward for _, result in steps_after_the_end(world, s)] for s in CHEAT_SEEDS]
    totals = [sum(rewards) for rewards in late if rewards]
    if totals:
        mean = sum(totals) / len(totals)
        scores[LATE] = PlayerScore(mean=mean, best=max(totals), num_solved=0, num_tried=len(totals))
    return scores


def check_expert(subject: Subject) -> None:
    """The limits leave room for the expert, who solves a task within them."""
    world = subject.make()
    longest = 0
    for seed in CHEAT_SEEDS:
        world.reset(seed, seed)
        plan = world.solve()
        longest = max(longest, len(plan or ()))
        if seed == CHEAT_SEEDS[0] and plan:
            result = world.step(plan[0])
            if result.info.get("search_failed"):
                raise Skip(
                    f"{subject.group.params.get('url')}: {result.observation.text.splitlines()[0]}"
                )
            expect(result.is_valid, f"seed {seed}: the expert's {plan[0]!r} is refused")
    limits = subject.group.settings()
    turns, actions = limits.max_turns, limits.max_actions_per_turn
    expect(
        longest <= turns * actions,
        f"an optimal episode takes {longest} actions, but {turns} turns of {actions} allow only "
        f"{turns * actions}",
    )
    if EXPERT not in scores_of(subject):
        raise Skip("there is no scripted expert (solve() is None)")
    expect(
        not world.reports_success or scores_of(subject)[EXPERT].success > 0,
        f"the expert, asked before every turn, solved 0 of {len(CHEAT_SEEDS)} tasks within the "
        "limits",
    )


def check_cheats(subject: Subject) -> None:
    """No cheat solves half of the tasks, or earns on average more than the expert at best."""
    scores = scores_of(subject)
    expert = scores.get(EXPERT)
    for name, each in scores.items():
        if name in (EXPERT, RANDOM):
            continue
        told = f"the cheat {name!r} earns {each.mean:.3g} on average"
        is_solver = name != "repeat" and each.success >= _CHEATS_SUCCEED
        expect(not is_solver, f"{told} and succeeds on {percent(each.success)} of the tasks")
        expect(
            expert is None or each.mean <= 0 or each.mean <= expert.best,
            f"{told}, the expert at best {expert.best if expert else 0:.3g}",
        )


def _repeat(action: str, env: TextEnv, text: str, rng: np.random.Generator) -> Sequence[str]:
    return [action]


def _random(env: TextEnv, text: str, rng: np.random.Generator) -> Sequence[str]:
    legal = env.legal_actions()
    return [legal[int(rng.integers(len(legal)))]] if legal else []
