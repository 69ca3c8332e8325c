"""Does the first prompt hold the solution?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..base import normalise
from .subject import Skip, Subject, expect

_LEAK_SHARE = 0.9
"""Share of tasks whose first prompt holds the solution, from which on that is no accident."""
_OTHERS_SHARE = 0.5
"""Share of other tasks' solutions in a prompt, up to which the own one is special there."""
_LEAK_SEEDS = range(20)
_MIN_LEAKS = 5


def check_prompt(subject: Subject) -> None:
    """The first prompt does not hold the expert's actions, or the last one where that is secret."""
    env = subject.make()
    if env.spec.quotes_answers:
        raise Skip("a question may quote its answer among other words")
    prompts: list[str] = []
    solutions: list[list[str]] = []
    are_secret: list[bool] = []
    for seed in _LEAK_SEEDS:
        first = env.reset(seed, seed)
        actions = list(env.solve() or ())
        if not actions:
            continue
        solutions.append([normalise(action) for action in actions])
        parts = [first.text, env.instructions(), *(message.content for message in first.messages)]
        prompts.append("\n".join(parts).casefold())
        # Which of the listed actions is right is not said where they are listed; and what a goal
        # names is no answer unless saying it at once earns something.
        is_listed = solutions[-1][-1] in map(normalise, env.legal_actions())
        result = env.step(actions[-1])
        are_secret.append(not is_listed and (result.success is True or result.reward > 0))
    if not solutions:
        return
    ways = [
        r"\W{1,5}".join(map(re.escape, solution)) if len(solution) > 1 else None
        for solution in solutions
    ]
    answers = [
        rf"(?<!\w){re.escape(word)}(?!\w)" if is_secret and word is not None else None
        for word, is_secret in zip(
            _what_differs([solution[-1] for solution in solutions]), are_secret, strict=True
        )
    ]
    for what, secrets in (("the solution", ways), ("the answer", answers)):
        own, others = _held(prompts, secrets)
        is_rare = len(own) < _MIN_LEAKS or _share(own) < _LEAK_SHARE
        expect(
            is_rare or _share(others) > _OTHERS_SHARE,
            f"the first prompt holds {what} of {_share(own):.0%} of {len(own)} tasks",
        )


def _what_differs(actions: Sequence[str]) -> Iterator[str | None]:
    """Each action without the whole words that all begin and end with; None if nothing is left."""
    rows = [re.findall(r"\w+|[^\w\s]|\s+", action) for action in actions]
    shortest = min(map(len, rows))
    start = end = 0
    while start < shortest and len({row[start] for row in rows}) == 1:
        start += 1
    while end < shortest - start and len({row[-1 - end] for row in rows}) == 1:
        end += 1
    for row in rows:
        yield "".join(row[start : len(row) - end]).strip() or None


def _held(prompts: Sequence[str], secrets: Sequence[str | None]) -> tuple[list[bool], list[bool]]:
    """Whether each prompt holds its own secret, and each other one of another task."""
    own: list[bool] = []
    others: list[bool] = []
    for number, prompt in enumerate(prompts):
        for other, secret in enumerate(secrets):
            if secret is not None and (other == number or secret != secrets[number]):
                is_held = re.search(secret, prompt) is not None
                (own if other == number else others).append(is_held)
    return own, others


def _share(flags: Sequence[bool]) -> float:
    return sum(flags) / len(flags) if flags else 0.0
