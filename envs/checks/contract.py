"""The checks of `check_env`, one function each; a finding is a `CheckFailure` with a sentence."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from echoscope.text.tool_calls import call_action

from .. import registry
from ..base import EnvError, Observation, StepResult, shorten
from ..frames import read_frame
from ..pool import EnvPool
from ..turns.runner import ActionTimeoutError, call_within
from .episodes import (
    HOSTILE_ACTIONS,
    HOSTILE_S,
    LONG_HOSTILE_ACTIONS,
    SEEDS,
    digest,
    digest_main,
    plan,
    play,
    seen,
)
from .fairness import (
    check_end,
    check_instances,
    check_invalid,
    check_pictures,
    check_prompt,
    check_success,
)
from .subject import CheckFailure, Skip, Subject, expect
from .tasks import check_tasks

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
MAX_FRAME_CHARS = 500_000
MAX_IMAGE_BYTES = 8_000_000
_PROCESS_TIMEOUT_S = 120


def _check_docstring(subject: Subject) -> None:
    text = type(subject.make()).__doc__ or ""
    at = [text.find(heading) for heading in HEADINGS]
    missing = [heading for heading, where in zip(HEADINGS, at, strict=True) if where < 0]
    expect(not missing, f"the class docstring lacks the headings {missing}")
    expect(at == sorted(at), f"the class docstring's headings are not in the order {HEADINGS}")


def _check_seeds(subject: Subject) -> None:
    env, other = subject.make(), subject.make()
    firsts = []
    for seed in SEEDS:
        first = env.reset(seed, 0)
        firsts.append(seen(first))
        for noise_seed in (1, 2**62):
            expect(
                other.reset(seed, noise_seed) == first,
                f"seed {seed}: the first observation depends on the instance or on noise_seed",
            )
    if len(SEEDS) > 1 and len(set(firsts)) == 1:
        raise Skip("all seeds give the same first observation; correct only for one fixed task")


def _check_steps(subject: Subject) -> None:
    one, two = subject.make(), subject.make()
    for seed in SEEDS:
        one.reset(seed, seed)
        actions = plan(one, seed)
        first = play(one, seed, 3, actions)
        expect(
            play(one, seed, 3, actions) == first,
            f"seed {seed}: an episode repeated on one instance differs",
        )
        # The other instance has lived through something else in between.
        play(two, seed + 1, 4, actions)
        expect(
            play(two, seed, 3, actions) == first,
            f"seed {seed}: another instance gives a different episode",
        )


def _check_processes(subject: Subject) -> None:
    env = subject.make()
    entry_point = registry.resolve(subject.env_id)
    if entry_point.startswith("__main__:") or "<locals>" in entry_point:
        raise Skip("the class cannot be imported by another process")
    request = {
        "path": [entry for entry in sys.path if entry],
        "entry_point": entry_point,
        "params": dict(subject.params),
    }
    child = subprocess.run(
        [
            sys.executable,
            "-c",
            f"from {digest_main.__module__} import digest_main; digest_main()",
        ],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        timeout=_PROCESS_TIMEOUT_S,
        env={**os.environ, "PYTHONHASHSEED": "4242"},
        check=False,
    )
    expect(
        child.returncode == 0,
        f"a second process failed: {shorten(child.stderr.strip()[-200:], 300)}",
    )
    expect(child.stdout == digest(env), "the same seeds give another episode in another process")


def _check_types(subject: Subject) -> None:
    env = subject.make()
    expect(bool(env.instructions().strip()), "instructions() is empty")
    for seed in SEEDS:
        _check_observation(env.reset(seed, seed))
        for action in plan(env, seed):
            result = env.step(action)
            _check_result(result)
            if result.terminated:
                break


def _check_observation(observation: Observation) -> None:
    expect(isinstance(observation, Observation), f"expected an Observation, got {observation!r}")
    expect(bool(observation.text.strip()), "an observation has no text")
    for what, size, most in (
        ("text", len(observation.text), MAX_TEXT_CHARS),
        ("frame", len(observation.frame or ""), MAX_FRAME_CHARS),
        ("picture", len(observation.image or b""), MAX_IMAGE_BYTES),
    ):
        expect(
            size <= most,
            f"the {what} of an observation has a size of {size:,}, but may have {most:,}: each "
            "turn is stored, and the text is a prompt",
        )
    observation.text.encode("utf-8")  # Lone surrogates cannot be stored.
    if observation.frame is not None:
        read_frame(observation.frame)


def _check_result(result: StepResult) -> None:
    expect(isinstance(result, StepResult), f"step() returned {type(result).__name__}")
    _check_observation(result.observation)
    expect(
        isinstance(result.reward, float) and math.isfinite(result.reward),
        f"reward is {result.reward!r}, but must be a finite float",
    )
    flags = {
        "terminated": result.terminated,
        "is_valid": result.is_valid,
        "is_effective": result.is_effective,
    }
    for name, flag in flags.items():
        expect(type(flag) is bool, f"{name} is {flag!r}, but must be a bool")
    expect(
        result.success is None or type(result.success) is bool,
        f"success is {result.success!r}, but must be a bool or None",
    )
    for key, value in result.info.items():
        expect(
            isinstance(key, str) and isinstance(value, float),
            f"info[{key!r}] is {value!r}, but info maps str to float",
        )


def _check_hostile(subject: Subject) -> None:
    env = subject.make()
    for seed, actions in (
        (SEEDS[0], HOSTILE_ACTIONS),
        (SEEDS[1], HOSTILE_ACTIONS + LONG_HOSTILE_ACTIONS),
    ):
        env.reset(seed, seed)
        legal_words = {action.strip().casefold() for action in env.legal_actions()}
        for action in actions:
            shown = shorten(action)
            try:
                result = call_within(partial(env.step, action), HOSTILE_S, "the action")
            except ActionTimeoutError:
                raise CheckFailure(
                    f"the action {shown!r} of {len(action)} characters took more than "
                    f"{HOSTILE_S:g} s"
                ) from None
            expect(
                min(len(result.observation.text), len(action)) < MAX_TEXT_CHARS,
                f"the action {shown!r} is echoed at length",
            )
            _check_result(result)
            if legal_words and action.strip().casefold() not in legal_words:
                expect(not result.is_valid, f"the action {shown!r} counts as valid")
                expect(not result.is_effective, f"the invalid action {shown!r} has an effect")
                expect(
                    result.observation.text.startswith(env.invalid_notice(action)),
                    f"after the invalid action {shown!r} the observation does not say so",
                )
            if result.terminated:
                env.reset(seed, seed)


def _check_legal(subject: Subject) -> None:
    env = subject.make()
    env.reset(SEEDS[0], SEEDS[0])
    if not env.legal_actions():
        raise Skip("legal_actions() is empty: actions cannot be listed")
    for seed in SEEDS[:3]:
        env.reset(seed, seed)
        for action in env.legal_actions():
            for spelling in (action, f"  {action.upper()} "):
                env.reset(seed, seed)
                expect(env.step(spelling).is_valid, f"the legal action {spelling!r} is refused")


def _check_tools(subject: Subject) -> None:
    """Declarations that hold, and calls that are refused in words whatever their arguments."""
    env = subject.make()
    tools = env.tools()
    if not tools:
        return
    expect(subject.make().tools() == tools, "tools() depends on the instance")
    json.dumps([tool.as_json() for tool in tools])
    for tool in tools:
        for arguments in _HOSTILE_ARGUMENTS:
            env.reset(0, 0)
            result = env.step(call_action(tool.name, arguments))
            _check_result(result)
            expect(
                bool(result.observation.messages), f"a call of {tool.name} gives no tool message"
            )
            if arguments and not tool.parameters.get("additionalProperties"):
                expect(
                    not result.is_valid, f"{tool.name} accepts arguments that it does not declare"
                )


_HOSTILE_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {},
    {"no such argument": 1},
    {"no such argument": [None, {"x": "\x00" * 1000}]},
)


def _check_expert(subject: Subject) -> None:
    """The budget leaves room for the expert, and the expert does succeed."""
    env = subject.make()
    budget = subject.max_turns * subject.max_actions_per_turn
    longest, solved, tried = 0, 0, 0
    for seed in range(20):
        env.reset(seed, seed)
        moves = env.solve()
        if moves is None:
            continue
        tried += 1
        longest = max(longest, len(moves))
        for action in moves:
            result = env.step(action)
            expect(result.is_valid, f"seed {seed}: the expert's {action!r} is refused")
            if result.terminated:
                solved += result.success is True
                break
    if not tried:
        raise Skip("there is no scripted expert (solve() is None)")
    expect(
        longest <= budget,
        f"an optimal episode takes {longest} actions, but {subject.max_turns} turns of "
        f"{subject.max_actions_per_turn} allow only {budget}",
    )
    expect(solved > 0, "the expert never succeeds")


def _check_instructions(subject: Subject) -> None:
    env = subject.make()
    rules = env.instructions()
    for seed in SEEDS:
        shown = f"{rules} {env.reset(seed, 0).text}".casefold()
        expect(
            env.instructions() == rules, "instructions() depend on the task, not only the config"
        )
        missing = [action for action in env.legal_actions() if action.casefold() not in shown]
        expect(
            not missing, f"neither instructions() nor the observation name the actions {missing}"
        )


def _check_bounded(subject: Subject) -> None:
    """Every slot of a pool stops within its limits, whatever is played."""
    with EnvPool([subject.group(groups=2)], group_size=2, seed=0, split="probe") as pool:
        running = [slot.index for slot in pool.reset(0)]
        for turn in range(subject.max_turns):
            play_now = dict.fromkeys(running, (("no such action", "") if turn % 2 else (), True))
            results = pool.step(play_now)
            errors = [result.error for result in results.values() if result.error]
            expect(not errors, f"an action ended in an error: {errors[:1]}")
            running = [index for index in running if results[index].stop_reason is None]
        expect(not running, "an episode outlived its turn limit")


def _check_closing(subject: Subject) -> None:
    env = subject.make()
    env.close()
    fresh = subject.make()
    fresh.reset(0, 0)
    fresh.close()
    try:
        registry.make(subject.env_id, **{**subject.params, "no_such_parameter": 1})
    except EnvError:
        return
    raise CheckFailure("an unknown parameter is accepted")


CHECKS: Mapping[str, Callable[[Subject], None]] = {
    "docstring": _check_docstring,
    "types": _check_types,
    "seeds": _check_seeds,
    "tasks": check_tasks,
    "steps": _check_steps,
    "instances": check_instances,
    "processes": _check_processes,
    "legal": _check_legal,
    "hostile": _check_hostile,
    "invalid": check_invalid,
    "success": check_success,
    "end": check_end,
    "prompt": check_prompt,
    "pictures": check_pictures,
    "tools": _check_tools,
    "expert": _check_expert,
    "instructions": _check_instructions,
    "bounded": _check_bounded,
    "closing": _check_closing,
}
"""Name -> check, in the order in which they run."""
