"""What to do about what the alarms found: one action that fits this run, and why.

It is a command that works in the run's present state. A live run that is only to be watched is
given a `set`, if the setting is live and its value differs; a run that has ended or collapsed is
branched from the last good checkpoint, because weights that are lost do not come back by a setting.
A metrics file of another trainer is given a sentence in that trainer's terms.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from echoscope.store.records import Alarm, Command, CommandAction
from echoscope.text.amounts import percent

from ..rules.base import Rule
from .causes import Cause
from .situation import Situation

Verb = Literal["set", "branch", "none"]
TASK_MUST_CHANGE = "No trainer setting cures this; the task must change. "
NEAR_BEST = 0.7
"""Share of the best evaluation success below which advice says that a checkpoint is far from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One thing to do: what buttons, commands and the text of a verdict are made from."""

    text: str
    command: str = ""
    """Complete, as a person types it; empty where there is none."""
    verb: Verb = "none"
    checkpoint: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""
    can_cure: bool = True
    """False: no setting of the trainer cures this, the task must change."""


def advise(
    rules: Sequence[Rule],
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    *,
    is_lost: bool,
) -> tuple[Action, ...]:
    """What to do, the first thing first; nothing where nothing is wrong.

    A run that crashed, was paused or was stopped is told how to go on: after what to do about an
    alarm that paused or stopped it, and not at all where the run is lost.

    Args:
        rules: Of the open alarms, the most serious first.
        alarms: The open alarms, as they stand: they say from which step on nothing is healthy.
        is_lost: The run is collapsing or collapsed.
    """
    going_on = way_on(situation)
    if not rules:
        return going_on
    remedies = _remedies(rules, causes, alarms, situation, is_lost)
    if is_lost or any(rule.name == "NOT_LEARNING" for rule in rules):
        return remedies
    fate = situation.fate
    return (*remedies, *going_on) if fate is not None and fate.alarm else (*going_on, *remedies)


def way_on(situation: Situation) -> tuple[Action, ...]:
    """How a run that crashed, was paused or was stopped goes on."""
    fate = situation.fate
    if fate is None or not fate.way_on:
        return ()
    return (Action(text=fate.way_on, command=fate.command, why=fate.words),)


def _remedies(
    rules: Sequence[Rule],
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    is_lost: bool,
) -> tuple[Action, ...]:
    remedy = next((cause for cause in causes if cause.settings), None)
    if situation.kind == "foreign":
        return (_foreign(rules[0], remedy, causes, alarms, situation, is_lost),)
    if remedy is None:
        return (_read(rules[0], causes, situation),)
    settings = dict(remedy.settings)
    can_cure = not remedy.is_task
    if situation.kind == "live" and not is_lost and settings.keys() <= situation.live.keys():
        return (
            Action(
                text=f"Change this setting in the live run. {remedy.why}",
                command=command_line("set", situation.run, settings),
                verb="set",
                settings=settings,
                why=remedy.why,
                can_cure=can_cure,
            ),
        )
    step, reason = _checkpoint(alarms, situation)
    pairs = " ".join(f"{key}={shown(value)}" for key, value in settings.items())
    if reason:
        return (
            Action(
                text=f"Start the run again with {pairs}: {_lowered(reason)} {remedy.why}",
                settings=settings,
                why=remedy.why,
                can_cure=can_cure,
            ),
        )
    lead = TASK_MUST_CHANGE if remedy.is_task else ""
    where = "the last good checkpoint"
    if step is not None:
        where = f"checkpoint {step}{_evaluated(step, situation)}"
    return (
        Action(
            text=f"{lead}Branch from {where} with {_changes(settings, situation)}. {remedy.why}",
            command=command_line("branch", situation.run, settings, checkpoint=step),
            verb="branch",
            checkpoint=step,
            settings=settings,
            why=remedy.why,
            can_cure=can_cure,
        ),
    )


def _evaluated(step: int, situation: Situation) -> str:
    """` (evaluation 71 %)`: how good a checkpoint is, by the last evaluation until it."""
    before = [earlier for earlier in situation.success if earlier <= step]
    if not before:
        return ""
    here, best = situation.success[max(before)], max(situation.success.values())
    is_far = here < NEAR_BEST * best
    rest = f", far below the best of {percent(best)}" if is_far else ""
    return f" (evaluation {percent(here)}{rest})"


def _changes(settings: Mapping[str, Any], situation: Situation) -> str:
    """`optim.lr=0.0001 (now 0.004)`, and so on."""
    parts = []
    for key, value in settings.items():
        now = situation.setting(key)
        is_known = isinstance(now, bool | int | float | str)
        parts.append(f"{key}={shown(value)}{f' (now {shown(now)})' if is_known else ''}")
    return " and ".join(parts)


def _checkpoint(alarms: Sequence[Alarm], situation: Situation) -> tuple[int | None, str]:
    """The step of the last good checkpoint, or why there is none; neither where nobody knows."""
    from echoscope.store.checkpoints import (
        choose_checkpoint,  # readers are not needed for a metrics file
    )

    if situation.checkpoints is None:
        return None, ""
    choice = choose_checkpoint(situation.checkpoints, alarms, situation.success)
    return choice.step, "" if choice.step is not None else choice.reason


def live_command(action: Action, alarm_id: str, run_id: str, rule: str) -> Command | None:
    """What can be sent to the live run for an action; None for all but a `set`."""
    if action.verb != "set":
        return None
    return Command(
        command_id=f"suggested-{alarm_id}",
        run_id=run_id,
        issued_at=0.0,
        issued_by="echoscope",
        action=CommandAction.SET,
        settings=dict(action.settings),
        reason=f"{rule}: {action.why}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmAdvice:
    """What an open alarm advises, as far as it can still be followed."""

    text: str = ""
    command: str = ""
    """As a person types it; empty where nothing is to be typed."""
    wish: Command | None = None
    """What can be sent to the live run."""


def alarm_advice(
    alarm: Alarm, *, run: str, is_live: bool, current: Mapping[str, Any], is_open: bool = True
) -> AlarmAdvice:
    """The advice of an alarm that was raised earlier.

    No command for a run that takes none any more, nor one for what holds already; nothing at all
    for an alarm that is over.

    Args:
        run: How a command names the run, as a shell reads it.
        is_live: A trainer takes commands.
        current: Live settings by dotted key, as they are now.
    """
    if not is_open:
        return AlarmAdvice()
    text, _, typed = alarm.advice.partition(f" {_COMMAND}")
    wish = alarm.suggested
    if wish is None:
        # The trainer names the run by its own name; a person is somewhere else.
        _, verb, rest = typed.partition(" branch")
        return AlarmAdvice(text=text, command=f"{_COMMAND}{run}{verb}{rest}" if verb else "")
    pairs = ", ".join(f"{key}={shown(value)}" for key, value in wish.settings.items())
    if not is_live:
        what = f"to set {pairs}" if pairs else f"to {wish.action.value.replace('_', ' ')} the run"
        return AlarmAdvice(
            text=f"While the run was live, the advice was {what}. The verdict says what to do now."
        )
    if pairs and all(current.get(key) == value for key, value in wish.settings.items()):
        return AlarmAdvice(text=f"The advice is followed already: {pairs}.")
    return AlarmAdvice(
        text=text, command=command_line(wish.action.value, run, wish.settings), wish=wish
    )


_COMMAND = "echoscope ctl "


def command_line(
    verb: str, run: str, settings: Mapping[str, Any], *, checkpoint: int | None = None
) -> str:
    """What a person types.

    >>> command_line("branch", "runs/a", {"optim.lr": 1e-4}, checkpoint=20)
    'echoscope ctl runs/a branch --checkpoint 20 optim.lr=0.0001'
    """
    at = "" if checkpoint is None else f" --checkpoint {checkpoint}"
    pairs = "".join(f" {key}={shown(value)}" for key, value in settings.items())
    return f"{_COMMAND}{run} {verb}{at}{pairs}"


def shown(value: Any) -> str:
    """A value as it is typed: short, and read back as the same.

    >>> shown(True), shown(1e-6), shown(0.0), shown("rloo")
    ('true', '1e-06', '0', 'rloo')
    """
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _read(rule: Rule, causes: Sequence[Cause], situation: Situation) -> Action:
    is_task = any(cause.is_task for cause in causes[:1])
    advice = _in_terms(rule.advice, situation)
    return Action(
        text=(TASK_MUST_CHANGE * is_task) + advice,
        verb="none",
        why=advice,
        can_cure=not is_task,
    )


def _in_terms(advice: str, situation: Situation) -> str:
    """Our settings in brackets by the other trainer's names; left out where it has none."""
    if situation.kind != "foreign":
        return advice
    terms = _TERMS.get(situation.trainer, {})

    def named(match: re.Match[str]) -> str:
        return f" (`{terms[match[1]]}`)" if match[1] in terms else ""

    return re.sub(r" \(`([\w.]+)`\)", named, advice)


_TERMS: Mapping[str, Mapping[str, str]] = {
    "verl": {
        "optim.lr": "actor_rollout_ref.actor.optim.lr",
        "loss.entropy_coef": "actor_rollout_ref.actor.entropy_coeff",
        "loss.kl_coef": "actor_rollout_ref.actor.kl_loss_coef",
        "loss.clip_high": "actor_rollout_ref.actor.clip_ratio_high",
        "context.max_response_tokens": "data.max_response_length",
    },
    "trl": {
        "optim.lr": "learning_rate",
        "loss.kl_coef": "beta",
        "loss.clip_high": "epsilon_high",
        "context.max_response_tokens": "max_completion_length",
    },
}


def trainer_of(columns: Collection[str]) -> str:
    """Whose names these columns are: `verl` (RAGEN too), `trl`, or empty.

    >>> trainer_of(["actor/entropy", "critic/score/mean"]), trainer_of(["completions/mean_length"])
    ('verl', 'trl')
    """
    names = [name.casefold().replace("_", "/", 1) for name in columns]
    if any(name.startswith(("actor/", "critic/", "val-core/")) for name in names):
        return "verl"
    if any(name.startswith(("completions/", "completion/", "objective/")) for name in names):
        return "trl"
    return ""


def _foreign(
    rule: Rule,
    remedy: Cause | None,
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    is_lost: bool,
) -> Action:
    if remedy is None:
        return _read(rule, causes, situation)
    onsets = [s for a in alarms for s in (a.earliest_onset_step, a.onset_step) if s is not None]
    back = f"Go back to a checkpoint from before step {min(onsets)} and " if onsets else ""
    verb = "continue" if back else "Continue"
    terms = _TERMS.get(situation.trainer, {})
    parts = []
    for key, value in remedy.settings.items():
        known = isinstance(value, float) and math.isfinite(value)
        if key == "optim.lr" and not known:
            name = f" (`{terms[key]}`)" if key in terms else ""
            parts.append(f"a tenth of the learning rate{name}")
        elif key in terms:
            parts.append(f"`{terms[key]}={shown(value)}`")
        else:
            return _read(rule, causes, situation)
    text = f"{back if is_lost else ''}{verb if is_lost else 'Continue'} with {' and '.join(parts)}."
    return Action(text=f"{text} {remedy.why}", settings=dict(remedy.settings), why=remedy.why)


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
