"""What steering a run needs to know and to do, for the command line and the dashboard alike.

`check_settings` judges by the schema in `run.json` (`RunInfo.live_knobs`), so that a form can
refuse a wrong value in words before it is sent; the trainer judges everything that arrives.
"""

from __future__ import annotations

import functools
import getpass
import json
import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from echoscope.text.amounts import BOUNDS
from echoscope.text.did_you_mean import did_you_mean

from ..errors import StoreError
from ..reader import CommandState, RunInfo
from ..records import ALARM_AUTHOR, Command, CommandAction, CommandOutcome
from ..status import Origin, halts_of, origin_of, trainer_name
from .commands import new_command, post
from .rewinds import why_no_order
from .settings import flat

if TYPE_CHECKING:
    from jsonschema import ValidationError

NO_CHANGE = "no change: "
"""How the detail of a command begins that was applied and changed nothing."""
MAX_REASON = 2_000
MAX_AUTHOR = 100


CONTROLS = "controls"
"""Key of the configuration of a run that another trainer made: the actions that the trainer obeys.
Without it, all but those that no recorder can pass on."""
_NOT_RECORDED = (CommandAction.EVALUATE, CommandAction.REWIND)


def obeyed_actions(config: Mapping[str, Any]) -> tuple[CommandAction, ...]:
    """What the trainer of a run does when it is told to.

    >>> [str(action) for action in obeyed_actions({"recorded": True, "controls": ["stop", "?"]})]
    ['stop']
    >>> obeyed_actions({"imported": {"trainer": "verl"}})
    ()
    """
    origin = origin_of(config)
    if origin is Origin.TRAINED:
        return tuple(CommandAction)
    if origin is not Origin.RECORDED:
        return ()
    named = config.get(CONTROLS)
    if isinstance(named, list):
        return tuple(action for action in CommandAction if action.value in named)
    return tuple(action for action in CommandAction if action not in _NOT_RECORDED)


_NOT_STEERED: Mapping[Origin, str] = {
    Origin.IMPORTED: "This run was imported from files of {}, so it takes no commands.",
    Origin.WATCHED: "Echoscope follows the files of {} and cannot send commands to it. A recorder "
    "in the training loop can.",
    Origin.EVALUATED: "This run is an evaluation: nothing is trained, so it takes no commands.",
    Origin.RECORDED: "The recorder in {} passes on no commands.",
}


def why_not_steered(config: Mapping[str, Any]) -> str:
    """Why a run takes no commands at all, in a sentence; empty where it takes some."""
    if obeyed_actions(config):
        return ""
    return _NOT_STEERED[origin_of(config)].format(trainer_name(config) or "another trainer")


def why_no_branch(config: Mapping[str, Any]) -> str:
    """Why no branch can start from a run, in a sentence; empty where one can."""
    if origin_of(config) is Origin.TRAINED:
        return ""
    if origin_of(config) is Origin.EVALUATED:
        return "This run is an evaluation: it has no weights to branch from."
    return "The weights of this run are with another trainer, so it cannot branch from here."


_ENDS_A_PAUSE = (
    *(CommandAction.RESUME, CommandAction.STOP, CommandAction.STOP_NOW),
    CommandAction.REWIND,
)


class SteeringError(ValueError):
    """An order that must not or cannot be given: the message names the value, the rule and the way
    out."""


class WrongSettingError(SteeringError):
    """A setting that the run does not have, that cannot change now, or a value that it refuses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where steering has brought a run."""

    steps: int
    """How many it will take."""
    is_paused: bool
    is_stopping: bool
    """A stop was sent, or applied, and the run has not ended yet."""
    waiting: tuple[Command, ...]
    """Not answered yet, in the order of issue."""


def standing(info: RunInfo, states: Iterable[CommandState], current: Mapping[str, Any]) -> Standing:
    """What the commands so far leave of a run.

    Args:
        states: `RunReader.commands`.
        current: The live settings that hold now (`live_settings(run).now`).
    """
    all_states = list(states)
    is_running = info.status == "running"
    halts = halts_of(all_states, info.attempt)
    steps = current.get("steps", info.config.get("steps", 0))
    return Standing(
        steps=int(steps) if isinstance(steps, int | float) and math.isfinite(steps) else 0,
        is_paused=is_running and halts.pause is not None,
        is_stopping=is_running and halts.next_stop is not None,
        waiting=tuple(state.command for state in all_states if state.ack is None),
    )


def unfinished_action(
    info: RunInfo, states: Iterable[CommandState], *, after: int
) -> Command | None:
    """The stop or pause by an alarm that a crash cut off and that must act again; None mostly.

    Where the run resumes before the step of the alarm, the alarm is raised again by itself. Only a
    run that resumes right after that step would train on.

    Args:
        states: `RunReader.commands`.
        after: The step that the run resumes after.
    """
    if info.status != "crashed":
        return None
    pending = None
    for state in states:
        command, ack = state.command, state.ack
        if ack is None or ack.outcome is not CommandOutcome.APPLIED:
            continue
        if state.attempt != info.attempt or ack.step != after + 1:
            continue
        if command.issued_by.startswith(ALARM_AUTHOR):
            pending = command
        elif command.action in _ENDS_A_PAUSE:
            pending = None  # a person has seen it
    return pending


def check_settings(live_knobs: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by the run's own keys; refuses what cannot be right, by the schema of the run.

    A recorded run may know a setting by its trainer's name, too: `names` in its schema. A name that
    stands for several settings gives way to one that stands for one of them.

    Raises:
        WrongSettingError: an unknown key, a wrong type, a value out of range or not a choice, or a
            setting that is given twice.

    >>> check_settings({"optim.lr": {"type": "number", "names": ["learning_rate"]}},
    ...     {"learning_rate": 0.1})
    {'optim.lr': 0.1}
    """
    if not settings:
        raise WrongSettingError("nothing to set; change at least one value")
    schemas = {key: value for key, value in live_knobs.items() if isinstance(value, Mapping)}
    named: dict[str, list[str]] = {}
    for own, schema in schemas.items():
        names = schema.get("names")
        for name in names if isinstance(names, list) else ():
            named.setdefault(str(name), []).append(own)
    targets = {key: [key] if key in schemas else named.get(key, []) for key in settings}
    out: dict[str, Any] = {}
    given: dict[str, str] = {}
    for key in sorted(settings, key=lambda key: -len(targets[key])):
        if not targets[key]:
            raise WrongSettingError(
                f"{key!r} is not a setting that can change during the run"
                f"{did_you_mean(key, [*schemas, *named])}"
            )
        for own in targets[key]:
            for error in _validator_class()(schemas[own]).iter_errors(settings[key]):
                raise WrongSettingError(f"{key} is {settings[key]!r}, but {_sentence(error)}")
            if own in given and len(targets[given[own]]) == 1:
                raise WrongSettingError(f"{given[own]} and {key} are one setting; give one of them")
            out[own], given[own] = settings[key], key
    typed = dict.fromkeys(own for key in settings for own in targets[key])
    return {own: out[own] for own in typed}


@functools.cache
def _validator_class() -> Any:
    """JSON Schema as far as a live setting needs it.

    `run.json` may be a stranger's: no keyword that fetches an address or runs a pattern is known.
    """
    from jsonschema import Draft202012Validator
    from jsonschema.validators import create

    keywords = (
        *("type", "enum", "anyOf", "propertyNames", "additionalProperties"),
        *("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"),
    )
    checker = Draft202012Validator.TYPE_CHECKER

    def is_finite_number(_: Any, value: Any) -> bool:
        return checker.is_type(value, "number") and math.isfinite(value)

    def is_integer(_: Any, value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool)  # as the trainer judges it

    return create(
        meta_schema={},
        validators={name: Draft202012Validator.VALIDATORS[name] for name in keywords},
        type_checker=checker.redefine_many({"number": is_finite_number, "integer": is_integer}),
    )


_TYPES = {
    "null": "null",
    "boolean": "true or false",
    "string": "text",
    "object": "a mapping",
    "integer": "a whole number without a decimal point",
    "number": "a number",
}


def _sentence(error: ValidationError) -> str:
    rule, value = error.validator_value, error.instance
    if error.validator == "anyOf":
        return " or ".join(map(_sentence, error.context))
    if "propertyNames" in error.schema_path:
        return f"{value!r} is not known{did_you_mean(str(value), rule)}"
    subject = "".join(f"{name} " for name in error.path)
    if error.validator in BOUNDS:
        return f"{subject}must be {BOUNDS[error.validator]} {rule}"
    if error.validator == "enum":
        return f"{subject}must be one of {', '.join(map(str, rule))}"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{subject}must be finite"
    return f"{subject}must be {_TYPES.get(rule, rule)}"


def override_words(changes: Mapping[str, Any]) -> tuple[str, ...]:
    """Settings as KEY=VALUE words; those of a mapping one by one.

    >>> override_words({"optim.lr": 1e-05, "rules": {"KL_DRIFT": "stop"}, "enabled": True})
    ('optim.lr=1e-05', 'rules.KL_DRIFT=stop', 'enabled=true')
    """
    out: list[str] = []
    for key, value in changes.items():
        if isinstance(value, Mapping):
            out += override_words({f"{key}.{name}": entry for name, entry in value.items()})
        else:
            out.append(f"{key}={value if isinstance(value, str) else json.dumps(value)}")
    return tuple(out)


def setting_warnings(
    info: RunInfo, current: Mapping[str, Any], changes: Mapping[str, Any]
) -> list[str]:
    """What a change of settings would not do, or would end: one sentence each, before it is sent.

    Nothing here is wrong (`check_settings` refuses that); each sentence says why the run would not
    train differently, or would stop, and which setting to change as well. A setting that `moves` is
    changed by the trainer, too: what was set last need not hold.

    Args:
        current: The live settings that hold now, by dotted key.
        changes: What is about to be sent; values of the same command count together.

    >>> info = RunInfo(run_id="r", path=Path("r"), name="", status="running", created_at=0,
    ...     ended_at=None, attempt=1, last_step=40, base_model="", parent_run_id=None,
    ...     tags=(), config={}, live_knobs={})
    >>> setting_warnings(info, {"steps": 100}, {"steps": 20})
    ['steps=20 ends the run at once: step 40 is finished already. To go on, set steps above 40.']
    """
    after = {**current, **changes}
    out = []
    for key, value in changes.items():
        value_text = value if isinstance(value, str) else json.dumps(value)
        schema = info.live_knobs.get(key)
        is_moving = isinstance(schema, Mapping) and schema.get("moves") is True
        if key in current and current[key] == value and not is_moving:
            out.append(f"{key} is {value_text} already: nothing changes.")
            continue
        reason = _end_words(info, value) if key == "steps" else _inert_words(info, after, key)
        if reason:
            out.append(f"{key}={value_text} {reason}")
    return out


def _end_words(info: RunInfo, steps: Any) -> str:
    done = info.last_step
    if not isinstance(steps, int | float) or done < 1 or steps > done:
        return ""
    return (
        f"ends the run at once: step {done} is finished already. To go on, set steps above {done}."
    )


def _inert_words(info: RunInfo, after: Mapping[str, Any], key: str) -> str:
    """Why a setting has no effect with the other settings; empty where it has one.

    The rules come with the schema of the run: `inert` of a live setting is a list of them. A rule
    holds if every setting of `when` has one of the values there, and none of `unless` has.
    """

    effective = {**flat(info.config), **after}
    schema = info.live_knobs.get(key)
    rules = schema.get("inert", ()) if isinstance(schema, Mapping) else ()
    for rule in rules:
        when, unless = rule.get("when", {}), rule.get("unless", {})
        if not all(effective.get(name) in values for name, values in when.items()):
            continue
        if any(effective.get(name) in values for name, values in unless.items()):
            continue
        why = rule["why"]
        for name in (*when, *unless):
            why = why.replace(f"{{{name}}}", str(effective.get(name)))
        if "keys_in" not in rule:
            return f"has no effect: {why}"
        silent = effective.get(rule["keys_in"]) or ()
        keys = [each for each in after[key] if each in silent]
        if keys:
            return f"has no effect for {', '.join(keys)}: {why}"
    return ""


def os_user() -> str:
    """Who is at the keyboard, by the operating system."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number that has no name
        return str(os.getuid())


def check_texts(reason: str, author: str) -> None:
    """Raises SteeringError where why an order is given, or who gives it, is too long to be kept."""
    for name, text, limit in (("reason", reason, MAX_REASON), ("author", author, MAX_AUTHOR)):
        if len(text) > limit:
            raise SteeringError(f"the {name} has {len(text)} characters, at most {limit} are kept")


def prepare(
    info: RunInfo,
    action: CommandAction,
    *,
    settings: Mapping[str, Any] | None = None,
    issued_by: str = "",
    reason: str = "",
) -> Command:
    """A command for a run, not yet sent.

    Raises:
        WrongSettingError: as `check_settings`; or a rewind that nobody may order.
        SteeringError: the run is not running or cannot be reached, or a text is too long.
    """
    why = why_not_steered(info.config)
    if why:
        raise SteeringError(why)
    if info.status != "running":
        raise SteeringError(f"the run is {info.status}")
    if action is CommandAction.SET:
        settings = check_settings(info.live_knobs, settings or {})
    if action is CommandAction.REWIND and (why := why_no_order(settings or {})):
        raise WrongSettingError(why)
    check_texts(reason, issued_by)
    return new_command(
        info.run_id, action, settings=settings, issued_by=issued_by, reason=reason.strip()
    )


def send(run_path: Path, command: Command) -> None:
    """Put a prepared command into the run's mailbox.

    Raises:
        SteeringError: the disk refuses it, or there is no such run any more.
    """
    try:
        post(run_path, command)
    except StoreError as error:
        raise SteeringError(f"the command was not sent: {error}") from error


def same_waiting(states: Iterable[CommandState], command: Command) -> Command | None:
    """A command that asks for the same and still waits: sending another would change nothing."""
    for waiting in (state.command for state in states if state.ack is None):
        is_same = waiting.action is command.action and waiting.settings == command.settings
        if is_same and (waiting.expires_at is None or waiting.expires_at > command.issued_at):
            return waiting
    return None
