"""Can a policy earn a reward, or read the solution, without solving the task?"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from ..base import StepResult, TextEnv, normalise, shorten
from .episodes import JUNK, SEEDS, plan, play, seen
from .measure import steps_after_the_end, typical_actions
from .subject import Skip, Subject, expect

_LEAK_SHARE = 0.9
"""Share of tasks whose first prompt holds the solution, from which on that is no accident."""
_OTHERS_SHARE = 0.5
"""Share of other tasks' solutions in a prompt, up to which the own one is special there."""
_LEAK_SEEDS = range(20)
_MIN_LEAKS = 5
_PICTURE_SEEDS = range(256)


def check_prompt(subject: Subject) -> None:
    """The first prompt does not hold the expert's solution."""
    env = subject.make()
    prompts: list[str] = []
    solutions: list[list[str]] = []
    are_secret: list[bool] = []
    for seed in _LEAK_SEEDS:
        first = env.reset(seed, seed)
        actions = list(env.solve() or ())
        if not actions:
            continue
        solution = [normalise(action) for action in actions]
        parts = [first.text, env.instructions(), *(message.content for message in first.messages)]
        prompts.append("\n".join(parts).casefold())
        solutions.append(solution)
        # Which of the listed actions is right is not said where they are listed; and what a goal
        # names is no answer unless saying it at once earns something.
        is_listed = solution[-1] in map(normalise, env.legal_actions())
        are_secret.append(not is_listed and _earns(env.step(actions[-1])))
    if not solutions:
        return
    ways = [_way(solution) if len(solution) > 1 else None for solution in solutions]
    answers = [
        re.compile(rf"(?<!\w){re.escape(word)}(?!\w)") if is_secret and word is not None else None
        for word, is_secret in zip(
            _what_differs([solution[-1] for solution in solutions]), are_secret, strict=True
        )
    ]
    for what, secrets in (("the solution", ways), ("the answer", answers)):
        own, others, tried = _shares(prompts, secrets)
        expect(
            tried < _MIN_LEAKS or own < _LEAK_SHARE or others > _OTHERS_SHARE,
            f"the first prompt holds {what} of {own:.0%} of {tried} tasks",
        )


def _earns(result: StepResult) -> bool:
    return result.success is True or result.reward > 0


def _way(solution: Sequence[str]) -> re.Pattern[str]:
    """A whole solution, whatever stands between its actions."""
    return re.compile(r"\W{1,5}".join(map(re.escape, solution)))


def _what_differs(actions: Sequence[str]) -> Iterator[str | None]:
    """Each action without the whole words that all begin and end with; None if nothing is left."""
    words = [re.findall(r"\w+|[^\w\s]|\s+", action) for action in actions]
    shortest = min(map(len, words))
    start = end = 0
    while start < shortest and len({row[start] for row in words}) == 1:
        start += 1
    while end < shortest - start and len({row[-1 - end] for row in words}) == 1:
        end += 1
    for row in words:
        yield "".join(row[start : len(row) - end]).strip() or None


def _shares(
    prompts: Sequence[str], secrets: Sequence[re.Pattern[str] | None]
) -> tuple[float, float, int]:
    """How often a prompt holds its own secret, and another task's; and how many were tried."""
    own, others = [], []
    for at, prompt in enumerate(prompts):
        for other, secret in enumerate(secrets):
            if secret is None:
                continue
            if other == at:
                own.append(secret.search(prompt) is not None)
            elif secrets[at] is None or secret.pattern != secrets[at].pattern:  # type: ignore[union-attr]
                others.append(secret.search(prompt) is not None)
    return _share(own), _share(others), len(own)


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0


def check_invalid(subject: Subject) -> None:
    """An invalid action earns nothing, solves nothing and leaves the world as it was."""
    env = subject.make()
    for seed in SEEDS[:3]:
        env.reset(seed, seed)
        actions = typical_actions(env, seed)
        plain = _with_junk(env, seed, actions, ())
        for junk in JUNK:
            expect(
                _with_junk(env, seed, actions, (junk,)) == plain,
                f"seed {seed}: the invalid action {shorten(junk)!r} changes the world: what "
                "follows it differs",
            )


def _with_junk(env: TextEnv, seed: int, actions: Sequence[str], junk: Sequence[str]) -> list[Any]:
    """What each action of an episode gives, with junk before it that is not in the list."""
    env.reset(seed, seed)
    results = []
    for at, action in enumerate(actions):
        for word in junk if at < 2 else ():
            result = env.step(word)
            if result.is_valid:
                return _with_junk(env, seed, actions, ())  # no junk in this world
            shown = f"seed {seed}: the invalid action {shorten(word)!r}"
            expect(result.reward <= 0, f"{shown} earns {result.reward:g}")
            expect(not result.success, f"{shown} counts as success")
            expect(not result.is_effective, f"{shown} has an effect")
            if result.terminated:
                return _with_junk(env, seed, actions, ())
        result = env.step(action)
        news = (result.reward, result.terminated, result.success, result.is_valid)
        results.append((*news, seen(result.observation)))
        if result.terminated:
            break
    return results


def check_success(subject: Subject) -> None:
    """Success is not reported before the task is solved."""
    env = subject.make()
    for seed in SEEDS:
        env.reset(seed, seed)
        solution = env.solve()
        if not solution or len(solution) < 2:
            continue
        result = env.step(solution[0])
        expect(
            not result.success or not env.solve(),
            f"seed {seed}: success is True after the first of {len(solution)} actions of the "
            "expert",
        )


def check_end(subject: Subject) -> None:
    """After its end an episode stays over: no action earns anything or has an effect."""
    env = subject.make()
    tried = [(seed, *step) for seed in SEEDS[:3] for step in steps_after_the_end(env, seed)]
    if not tried:
        raise Skip("no episode reached its own end")
    for seed, action, result in tried:
        shown = f"seed {seed}: after the end of the episode the action {shorten(action)!r}"
        expect(result.reward <= 0, f"{shown} earns {result.reward:g}")
        expect(not result.is_effective, f"{shown} has an effect")
        expect(result.terminated, f"{shown} is answered as if the episode went on")


def check_instances(subject: Subject) -> None:
    """Instances that are played in turns share no state, and looking at one changes nothing."""
    one, two, alone = subject.make(), subject.make(), subject.make()
    for seed in SEEDS[:3]:
        alone.reset(seed, seed)
        actions = plan(alone, seed)[:20]
        expected = play(alone, seed, 3, actions)
        episode = [seen(one.reset(seed, 3))]
        two.reset(seed + 1, 4)
        for at, action in enumerate(actions):
            two.step(actions[-1 - at])
            if at < 4:
                _look_at(one)
            result = one.step(action)
            episode.append(seen(result.observation))
            if result.terminated:
                break
        expect(
            episode == [step[0] for step in expected],
            f"seed {seed}: an episode changes while another instance plays, or when somebody asks "
            "for the solution, the legal actions or the rules: instances share state",
        )


def _look_at(env: TextEnv) -> None:
    env.solve()
    env.legal_actions()
    env.instructions()
    env.task_key()


def check_pictures(subject: Subject) -> None:
    """Tasks that have said the same show a policy that sees the same picture."""
    env = subject.make()
    drawn: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for seed in _PICTURE_SEEDS:
        observation = env.reset(seed, 0)
        if observation.view is None or observation.image is not None:
            return  # a policy sees text, or the world's own pictures
        said: tuple[str, ...] = (observation.text,)
        drawn[said].add(observation.view)
        for action in env.legal_actions()[:2]:
            result = env.step(action)
            said = (*said, result.observation.text)
            drawn[said].add(result.observation.view or "")
            if result.terminated:
                break
    for said, views in drawn.items():
        expect(
            len(views) == 1,
            f"with render: rgb the picture shows what the text hides: {len(views)} different views "
            f"after the same text {shorten(said[-1], 60)!r}",
        )
