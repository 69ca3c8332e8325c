"""The checks of `check_env`, one function each; a finding is a `CheckFailure` with a sentence."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from echoscope.text.amounts import percent
from echoscope.text.pictures import read_frame
from echoscope.text.tool_calls import call_action

from .. import registry
from ..base import (
    Observation,
    StepResult,
    TextEnv,
    checked_observation,
    checked_result,
    hash_task,
    is_task_key,
    normalise,
    shorten,
)
from ..reserving import SURVEY_SEEDS, equal_pairs
from ..workers.bounded import ActionTimeoutError, call_within
from .episodes import (
    HOSTILE_ACTIONS,
    HOSTILE_S,
    JUNK,
    LONG_HOSTILE_ACTIONS,
    SEEDS,
    digest,
    digest_main,
    plan,
    play,
    steps_after_the_end,
    typical_actions,
)
from .players import check_cheats, check_expert
from .subject import CheckFailure, Skip, Subject, expect

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
) -> list[Observation | StepResult]:
    """An episode with the actions of a plan that is made for it, or for another task."""
    env.reset(seed if as_in is None else as_in, 0)
    return play(env, seed, noise_seed, plan(env, number))


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
            f"the first prompt holds {what} of {percent(_share(own))} of {len(own)} tasks",
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


HEADINGS = (
    "Description:",
    "Observation:",
    "Actions:",
    "Rewards:",
    "Episode end:",
    "Success:",
    "Seeds:",
    "Requires:",
    "Example:",
)
MAX_TEXT_CHARS = 50_000
_PROCESS_TIMEOUT_S = 120
_HOSTILE_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"no such argument": 1},
    {"no such argument": [None, {"x": "\x00" * 1000}]},
)


def _check_docstring(subject: Subject) -> None:
    text = type(subject.make()).__doc__ or ""
    offsets = [text.find(heading) for heading in HEADINGS]
    missing = [heading for heading, where in zip(HEADINGS, offsets, strict=True) if where < 0]
    expect(not missing, f"the class docstring lacks the headings {missing}")
    expect(
        offsets == sorted(offsets),
        f"the class docstring's headings are not in the order {HEADINGS}",
    )


def _check_types(subject: Subject) -> None:
    env = subject.make()
    expect(bool(env.instructions().strip()), "instructions() is empty")
    for seed in SEEDS:
        _check_observation(env.reset(seed, seed))
        for action in plan(env, seed):
            if _check_result(env.step(action)).terminated:
                break


def _check_observation(observation: Observation) -> None:
    checked_observation(observation)
    expect(bool(observation.text.strip()), "an observation has no text")
    size = len(observation.text)
    expect(
        size <= MAX_TEXT_CHARS,
        f"the text of an observation has a size of {size:,}, but may have {MAX_TEXT_CHARS:,}: it "
        "is a prompt",
    )
    if observation.frame is not None:
        read_frame(observation.frame)


def _check_result(result: StepResult) -> StepResult:
    checked_result(result)
    _check_observation(result.observation)
    return result


def _check_seeds(subject: Subject) -> None:
    """The first observation follows from `seed` alone."""
    env, other = subject.make(), subject.make()
    firsts = []
    for seed in SEEDS:
        first = env.reset(seed, 0)
        firsts.append(first)
        for noise_seed in (1, 2**62):
            expect(
                other.reset(seed, noise_seed) == first,
                f"seed {seed}: the first observation depends on the instance or on noise_seed",
            )
    if len(set(firsts)) == 1:
        raise Skip("all seeds give the same first observation; correct only for one fixed task")


def _check_steps(subject: Subject) -> None:
    """An episode follows from its seeds, whatever was played before or is played beside it."""
    first_world, two, beside = subject.make(), subject.make(), subject.make()
    for seed in SEEDS:
        first_world.reset(seed, seed)
        actions = plan(first_world, seed)
        first = play(first_world, seed, 3, actions)
        expect(
            play(first_world, seed, 3, actions) == first,
            f"seed {seed}: an episode repeated on one instance differs",
        )
        play(two, seed + 1, 4, actions)
        beside.reset(seed + 1, 4)

        def look(number: int, env: Any = two, other: Any = beside, moves: Any = actions) -> None:
            other.step(moves[number])
            if number < 4:
                env.solve(), env.legal_actions(), env.instructions(), env.task_key()

        expect(
            play(two, seed, 3, actions, before_each=look) == first,
            f"seed {seed}: an episode changes while another instance plays, after another episode, "
            "or when somebody asks for the solution, the legal actions or the rules",
        )


def _check_processes(subject: Subject) -> None:
    env = subject.make()
    entry_point = registry.resolve(subject.group.env)
    if entry_point.startswith("__main__:") or "<locals>" in entry_point:
        raise Skip("the class cannot be imported by another process")
    request = {
        "path": [entry for entry in sys.path if entry],
        "entry_point": subject.group.env
        if registry.is_of_family(subject.group.env)
        else entry_point,
        "params": dict(subject.group.params),
    }
    child = subprocess.run(
        [sys.executable, "-c", f"from {digest_main.__module__} import digest_main; digest_main()"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=_PROCESS_TIMEOUT_S,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        check=False,
    )
    reason = shorten(child.stderr.strip()[-200:], 300)
    expect(child.returncode == 0, f"a second process failed: {reason}")
    expect(child.stdout == digest(env), "the same seeds give another episode in another process")


def _check_legal(subject: Subject) -> None:
    """Legal actions are taken in any spelling, and named in the rules or the observation."""
    env = subject.make()
    env.reset(SEEDS[0], SEEDS[0])
    if not env.legal_actions():
        raise Skip("legal_actions() is empty: actions cannot be listed")
    rules = env.instructions()
    for seed in SEEDS[:3]:
        env.reset(seed, seed)
        for action in env.legal_actions():
            for spelling in (action, f"  {action.upper()} "):
                env.reset(seed, seed)
                expect(env.step(spelling).is_valid, f"the legal action {spelling!r} is refused")
        named = f"{rules} {env.reset(seed, seed).text}".casefold()
        expect(env.instructions() == rules, "instructions() depend on the task")
        missing = [action for action in env.legal_actions() if action.casefold() not in named]
        expect(
            not missing, f"neither instructions() nor the observation name the actions {missing}"
        )


def _check_hostile(subject: Subject) -> None:
    """Any text is answered in time, and refused where the legal actions can be listed."""
    env = subject.make()
    for seed, actions in (
        (SEEDS[0], HOSTILE_ACTIONS),
        (SEEDS[1], HOSTILE_ACTIONS + LONG_HOSTILE_ACTIONS),
    ):
        env.reset(seed, seed)
        legal = {normalise(action) for action in env.legal_actions()}
        for action in actions:
            named = shorten(action)
            try:
                result = call_within(partial(env.step, action), HOSTILE_S)
            except ActionTimeoutError:
                raise CheckFailure(
                    f"the action {named!r} of {len(action)} characters took more than "
                    f"{HOSTILE_S:g} s"
                ) from None
            expect(
                min(len(result.observation.text), len(action)) < MAX_TEXT_CHARS,
                f"the action {named!r} is echoed at length",
            )
            _check_result(result)
            if legal and normalise(action) not in legal:
                expect(not result.is_valid, f"the action {named!r} counts as valid")
                expect(
                    result.observation.text.startswith(env.invalid_notice(action)),
                    f"after the invalid action {named!r} the observation does not say so",
                )
            if result.terminated:
                env.reset(seed, seed)


def _check_invalid(subject: Subject) -> None:
    """An invalid action earns nothing, solves nothing and leaves the world as it was."""
    env = subject.make()
    for seed in SEEDS[:3]:
        env.reset(seed, seed)
        actions = typical_actions(env, seed)
        plain = play(env, seed, seed, actions)
        for junk in JUNK:
            is_over = False

            def send(number: int, word: str = junk, seed: int = seed) -> None:
                nonlocal is_over
                result = env.step(word) if number < 2 and not is_over else None
                if result is None:
                    return
                is_over = result.is_valid or result.terminated  # no junk in this world
                told = f"seed {seed}: the invalid action {shorten(word)!r}"
                expect(is_over or result.reward <= 0, f"{told} earns {result.reward:g}")
                expect(is_over or not result.success, f"{told} counts as success")
                expect(is_over or not result.is_effective, f"{told} has an effect")

            mixed = play(env, seed, seed, actions, before_each=send)
            expect(
                is_over or [_outcome(step) for step in mixed] == [_outcome(step) for step in plain],
                f"seed {seed}: the invalid action {shorten(junk)!r} changes the world: what "
                "follows it differs",
            )


def _outcome(step: Observation | StepResult) -> Observation | StepResult:
    """What a step gave, without its `info`, which may count actions."""
    return replace(step, info={}) if isinstance(step, StepResult) else step


def _check_success(subject: Subject) -> None:
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


def _check_end(subject: Subject) -> None:
    """After its end an episode stays over: no action earns anything or has an effect."""
    env = subject.make()
    tried = [(seed, *step) for seed in SEEDS[:3] for step in steps_after_the_end(env, seed)]
    if not tried:
        raise Skip("no episode reached its own end")
    for seed, action, result in tried:
        told = f"seed {seed}: after the end of the episode the action {shorten(action)!r}"
        expect(result.reward <= 0, f"{told} earns {result.reward:g}")
        expect(not result.is_effective, f"{told} has an effect")
        expect(result.terminated, f"{told} is answered as if the episode went on")


def _check_tools(subject: Subject) -> None:
    """Declarations that hold, and calls that are refused in words whatever their arguments."""
    env = subject.make()
    tools = env.tools()
    expect(subject.make().tools() == tools, "tools() depends on the instance")
    json.dumps([tool.as_json() for tool in tools])
    for tool in tools:
        for arguments in _HOSTILE_ARGUMENTS:
            env.reset(0, 0)
            result = _check_result(env.step(call_action(tool.name, arguments)))
            told = bool(result.observation.messages)
            expect(told, f"a call of {tool.name} gives no tool message")
            expect(
                not (arguments and result.is_valid) or "additionalProperties" in tool.parameters,
                f"{tool.name} accepts arguments that it does not declare",
            )


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "docstring": _check_docstring,
    "types": _check_types,
    "seeds": _check_seeds,
    "tasks": check_tasks,
    "steps": _check_steps,
    "processes": _check_processes,
    "legal": _check_legal,
    "hostile": _check_hostile,
    "invalid": _check_invalid,
    "success": _check_success,
    "end": _check_end,
    "prompt": check_prompt,
    "tools": _check_tools,
    "expert": check_expert,
    "cheats": check_cheats,
}
"""Name -> check, in the order in which they run."""
