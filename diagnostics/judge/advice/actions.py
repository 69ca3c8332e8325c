"""What to do about what the alarms found: one action that fits this run, and why.

It is a command that works in the run's present state. A live run that is only to be watched is
given a `set`, if the setting is live and its value differs; a run that has ended or collapsed is
branched from the last good checkpoint, because weights that are lost do not come back by a setting.
A metrics file of another trainer is given a sentence in that trainer's terms.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from echoscope.store.records import Alarm, Command, CommandAction
from echoscope.text.amounts import percent

from ..rules.base import Rule
from .causes import STEP_RULES, Cause, treatment_of
from .differences import shown
from .measured import LEAST_RUNS, Measured, first_shown, of_settings, tried_for
from .situation import Situation
from .treatments import Treatment, treatment

Verb = Literal["set", "branch", "none"]
TASK_MUST_CHANGE = "No trainer setting cures this; the task must change. "
CRITIC_KEYS = ("critic.", "loss.value_")
"""How the settings begin that a critic learns with."""
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
    is_trial: bool = False
    """No cause is known: it may help, and nothing says that it will."""
    rate: str = ""
    """How often it held such runs in CureBench, as a sentence; empty where it was not measured."""


def advise(
    rules: Sequence[Rule],
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    *,
    is_lost: bool,
    is_recovering: bool = False,
    still_rises: bool = True,
) -> tuple[Action, ...]:
    """What to do, the first thing first; nothing where nothing is wrong.

    A run that crashed, was paused or was stopped is told how to go on: after what to do about an
    alarm that paused or stopped it, and not at all where the run is lost.

    Args:
        rules: Of the open alarms, the most serious first; before them the one that a collapse began
            with.
        alarms: The open alarms, as they stand: they say from which step on nothing is healthy.
        is_lost: The run is collapsing or collapsed.
        is_recovering: Success rose again after a fall, and is not back.
        still_rises: It has not come to rest below what it was.
    """
    going_on = way_on(situation)
    if is_recovering:
        return going_on or (_LET_RECOVER if still_rises else _STOPPED_BELOW,)
    if not rules:
        return going_on
    remedy = _remedy(rules, causes, alarms, situation, is_lost=is_lost)
    if is_lost or any(rule.name == "NOT_LEARNING" for rule in rules):
        return (remedy,)
    fate = situation.fate
    return (remedy, *going_on) if fate is not None and fate.alarm else (*going_on, remedy)


_LET_RECOVER = Action(
    text="Let the run go on and watch success: it rises again. If it stops below what it was, go "
    "back to a checkpoint from before the fall.",
    why="Success rises beyond chance.",
)


_STOPPED_BELOW = Action(
    text="Decide whether this level is enough: success rose again, but not to what it was. If it "
    "is not, go back to a checkpoint from before the fall.",
    why="Success rose beyond chance and has not changed since.",
)


def way_on(situation: Situation) -> tuple[Action, ...]:
    """How a run that crashed, was paused or was stopped goes on."""
    fate = situation.fate
    if fate is None or not fate.way_on:
        return ()
    return (Action(text=fate.way_on, command=fate.command, why=fate.words),)


def _remedy(
    rules: Sequence[Rule],
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    *,
    is_lost: bool,
) -> Action:
    """One action that undoes the first difference; where none is known, what to look at first."""
    rule = rules[0]
    if situation.kind == "foreign":
        return _foreign(rule, causes, alarms, situation, is_lost=is_lost)
    cause = next((cause for cause in causes if cause.settings or cause.is_undone), None)
    helps = first_shown(rule.name, situation.setting) if is_lost else None
    if cause is None or _is_refuted(cause, rule, situation):
        is_trial = is_lost and not any(cause.look for cause in causes)
        trial = _trial(rule, alarms, situation, helps) if is_trial or helps else None
        return trial or _read(rule, causes, situation)
    names = [each.name for each in rules]
    settings = dict(cause.settings)
    if is_lost:
        settings = treatment_of(cause, causes, names, situation)
    more = [key for key in settings if key not in cause.settings]
    also = f" Possible further causes change as well: {', '.join(more)}." if more else ""
    why = f"{cause.why}{also}"
    action = Action(text="", settings=settings, why=_rests_on(cause), can_cure=not cause.is_task)
    is_set = not is_lost and settings.keys() <= situation.live.keys()
    if situation.kind == "live" and settings and is_set:
        return _set_live(cause, settings, situation)
    if not settings and not is_lost:
        return _read(rule, causes, situation)
    step, reason = checkpoint_before(cause, settings, alarms, situation)
    if step == 0 and _is_of_critic(cause, settings):
        why += " Later checkpoints hold the critic that learned with the old values."
    lead = TASK_MUST_CHANGE if cause.is_task else ""
    if reason:
        pairs = _pairs(settings)
        start = f"{lead}Start the run again{f' with {pairs}' if pairs else ''}"
        return replace(action, text=f"{start}: {_lowered(reason)} {why}")
    changes = f"with {_changes(settings, situation)}" if settings else "with its own settings"
    tried = of_settings(rule.name, settings, situation.setting)
    rate = "" if tried is None else tried.words
    return replace(
        action,
        text=f"{lead}Branch from {_where(step, situation)} {changes}. {why} {rate}".rstrip(),
        command=command_line("branch", situation.run, settings, checkpoint=step),
        verb="branch",
        checkpoint=step,
        rate=rate,
    )


def _set_live(cause: Cause, settings: Mapping[str, Any], situation: Situation) -> Action:
    return Action(
        text=f"Change this setting in the live run. {cause.why}",
        command=command_line("set", situation.run, settings),
        verb="set",
        settings=settings,
        why=_rests_on(cause),
        can_cure=not cause.is_task,
    )


def _is_refuted(cause: Cause, rule: Rule, situation: Situation) -> bool:
    """Whether runs with this alarm were not held by what the cause asks for, and were by others."""
    tried = of_settings(rule.name, cause.settings, situation.setting)
    is_refuted = tried is not None and tried.rate.of >= LEAST_RUNS and not tried.is_shown
    return is_refuted and first_shown(rule.name, situation.setting) is not None


def _rests_on(cause: Cause) -> str:
    """What an action rests on: the difference, and what undoing it does."""
    return f"Likely cause: {cause.text}. {cause.why}".strip()


def _trial(
    rule: Rule, alarms: Sequence[Alarm], situation: Situation, helps: Measured | None
) -> Action | None:
    """Of a lost run whose cause is not known: what was measured to help.

    Where nothing was, what to look at, and smaller steps as a trial.
    """
    step, reason = good_checkpoint(alarms, situation)
    chosen = treatment("lr-third") if helps is None else helps.treatment
    settings = chosen.settings(situation.setting)
    if not settings or (helps is None and rule.name not in STEP_RULES):
        return None
    tried = helps or of_settings(rule.name, settings, situation.setting)
    rate = "" if tried is None else tried.words
    start = "Start the run again" if reason else f"Branch from {_where(step, situation)}"
    order = f"{start} with {_changes(settings, situation)}{f': {_lowered(reason)}' * bool(reason)}"
    order = order.rstrip(".") + "."
    lead = f"{order} {chosen.why}" if helps else f"{rule.advice} As a trial only, {_lowered(order)}"
    unmeasured = "Whether that helps is not measured for this alarm."
    command = command_line("branch", situation.run, settings, checkpoint=step)
    return Action(
        text=f"{lead} {rate or unmeasured}",
        command="" if reason else command,
        verb="none" if reason else "branch",
        checkpoint=step,
        settings=settings,
        why=f"The cause is not known. {chosen.why} {rate or unmeasured}",
        is_trial=helps is None,
        rate=rate,
    )


def _where(step: int | None, situation: Situation) -> str:
    if step is None:
        return "the last good checkpoint"
    return f"checkpoint {step}{_evaluated(step, situation)}"


def _pairs(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={shown(value)}" for key, value in settings.items())


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


def checkpoint_before(
    cause: Cause, settings: Mapping[str, Any], alarms: Sequence[Alarm], situation: Situation
) -> tuple[int | None, str]:
    """The checkpoint to go on from with the settings that take a cause away; or why there is none.

    A checkpoint holds the critic too, and no evaluation shows what that has learned. Where its own
    settings change, it is the one from before the first step, if that is still there; not of a run
    that gained much since, with that critic.
    """
    best, start = max(situation.success.values(), default=0.0), situation.success.get(0, 0.0)
    has_start = 0 in (situation.checkpoints or ()) and start >= NEAR_BEST * best > 0
    if has_start and _is_of_critic(cause, settings):
        return 0, ""
    return good_checkpoint(alarms, situation, before=cause.since)


def _is_of_critic(cause: Cause, settings: Mapping[str, Any]) -> bool:
    """Whether the critic learned with other settings from the first step on."""
    return cause.since is None and any(key.startswith(CRITIC_KEYS) for key in settings)


def good_checkpoint(
    alarms: Sequence[Alarm], situation: Situation, *, before: int | None = None
) -> tuple[int | None, str]:
    """The step of the last good checkpoint, or why there is none; neither where nobody knows.

    Args:
        before: Only checkpoints from before this step are good.
    """
    from echoscope.store.checkpoints import (
        choose_checkpoint,  # readers are not needed for a metrics file
        none_before,
    )

    if situation.checkpoints is None:
        return None, ""
    steps = [step for step in situation.checkpoints if before is None or step < before]
    if situation.checkpoints and not steps and before is not None:
        return None, none_before(before)
    choice = choose_checkpoint(steps, alarms, situation.success)
    if choice.step is None and situation.rewound_to in steps:
        return situation.rewound_to, ""  # the last treatment did not help from there
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
    option = "" if checkpoint is None else f" --checkpoint {checkpoint}"
    settings_words = (f" {shlex.quote(f'{key}={shown(value)}')}" for key, value in settings.items())
    return f"{_COMMAND}{run} {verb}{option}{''.join(settings_words)}"


def _read(rule: Rule, causes: Sequence[Cause], situation: Situation) -> Action:
    is_task = any(cause.is_task for cause in causes[:1])
    look = next((cause.look for cause in causes if cause.look), rule.advice)
    advice = _in_terms(look, situation)
    return Action(
        text=(TASK_MUST_CHANGE * is_task) + advice,
        why=advice,
        can_cure=not is_task,
    )


def _in_terms(advice: str, situation: Situation) -> str:
    """Our settings in brackets by the other trainer's names; left out where it has none, as are
    our commands."""
    if situation.kind != "foreign":
        return advice
    terms, others = TERMS.get(situation.trainer, {}), _IN_OTHER_VALUES.get(situation.trainer, {})

    def named(match: re.Match[str]) -> str:
        if match[1] in others:
            return f" ({others[match[1]]})"
        pairs = [pair.partition("=") for pair in match[1].split()]
        if not all(key in terms for key, _, _ in pairs):
            return ""
        return f" (`{' '.join(terms[key] + equals + value for key, equals, value in pairs)}`)"

    return re.sub(r" \(`([^`]+)`\)", named, advice)


TERMS: dict[str, dict[str, str]] = {
    "verl": {
        "optim.lr": "actor_rollout_ref.actor.optim.lr",
        "optim.grad_clip": "actor_rollout_ref.actor.grad_clip",
        "optim.epochs": "actor_rollout_ref.actor.ppo_epochs",
        "optim.warmup_steps": "actor_rollout_ref.actor.optim.lr_warmup_steps",
        "loss.entropy_coef": "actor_rollout_ref.actor.entropy_coeff",
        "loss.kl_coef": "actor_rollout_ref.actor.kl_loss_coef",
        "loss.clip_low": "actor_rollout_ref.actor.clip_ratio_low",
        "loss.clip_high": "actor_rollout_ref.actor.clip_ratio_high",
        "critic.lr": "critic.optim.lr",
        "advantage.kind": "algorithm.adv_estimator",
        "envs.group_size": "actor_rollout_ref.rollout.n",
        "sampling.temperature": "actor_rollout_ref.rollout.temperature",
        "context.max_response_tokens": "data.max_response_length",
    },
    "trl": {
        "optim.lr": "learning_rate",
        "optim.grad_clip": "max_grad_norm",
        "optim.epochs": "num_iterations",
        "optim.warmup_steps": "warmup_steps",
        "loss.entropy_coef": "entropy_coef",
        "loss.kl_coef": "beta",
        "loss.clip_low": "epsilon",
        "loss.clip_high": "epsilon_high",
        "envs.group_size": "num_generations",
        "sampling.temperature": "temperature",
        "context.max_response_tokens": "max_completion_length",
        "reward.shaping": "reward_weights",
    },
}
TERMS["ragen"] = TERMS["verl"] | {
    "selection.strategy": "actor_rollout_ref.rollout.rollout_filter_strategy",
    "selection.value": "actor_rollout_ref.rollout.rollout_filter_value",
}
"""Our settings by other trainers' names, as docs/names.md pairs them. Values are the same."""

_CORRECTED = "off_policy.old_logprobs=trainer off_policy.correction=tis"
_VERL_CORRECTION = "algorithm.rollout_correction.rollout_is"
_TRL_CORRECTION = "vllm_importance_sampling_mode"
_ONE_PASS = "optim.epochs=1 optim.minibatches=1"
_IN_OTHER_VALUES: dict[str, dict[str, str]] = {
    "verl": {
        "selection.strategy=top_p selection.value=0.9": "`algorithm.filter_groups.enable=true`",
        _CORRECTED: f"`{_VERL_CORRECTION}=token`",
        f"{_CORRECTED} off_policy.cap=2": f"`{_VERL_CORRECTION}=token` and "
        f"`{_VERL_CORRECTION}_threshold=2`",
        f"{_CORRECTED} off_policy.level=token": f"`{_VERL_CORRECTION}=token`",
        f"{_CORRECTED} off_policy.level=sequence": f"`{_VERL_CORRECTION}=sequence`",
        _ONE_PASS: "`actor_rollout_ref.actor.ppo_epochs=1`, with "
        "`actor_rollout_ref.actor.ppo_mini_batch_size` equal to `data.train_batch_size`",
    },
    "trl": {
        _CORRECTED: f"`{_TRL_CORRECTION}=token_truncate`, with vLLM",
        f"{_CORRECTED} off_policy.cap=2": f"`{_TRL_CORRECTION}=token_truncate` and "
        "`vllm_importance_sampling_clip_max=2`, with vLLM",
        f"{_CORRECTED} off_policy.level=token": f"`{_TRL_CORRECTION}=token_truncate`, with vLLM",
        f"{_CORRECTED} off_policy.level=sequence": f"`{_TRL_CORRECTION}=sequence_truncate`, with "
        "vLLM",
        _ONE_PASS: "`num_iterations=1`, with `steps_per_generation` equal to "
        "`gradient_accumulation_steps`",
        "reward.shaping=[]": "`reward_weights` of 0 for what does not check the task",
    },
}
_IN_OTHER_VALUES["ragen"] = {_ONE_PASS: _IN_OTHER_VALUES["verl"][_ONE_PASS]}
"""Settings as we type them, where another trainer means the same by settings of other values; a
trainer that cannot do it has none."""


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
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    *,
    is_lost: bool,
) -> Action:
    """In the terms of the other trainer; where no cause is known, what to look at first."""
    terms, others = TERMS.get(situation.trainer, {}), _IN_OTHER_VALUES.get(situation.trainer, {})
    ends = [(alarm.earliest_onset_step, alarm.onset_step) for alarm in alarms[:1]]
    onset = min((step for pair in ends for step in pair if step is not None), default=0)
    back = ""
    if is_lost and onset > 1:
        back = f"Go back to a checkpoint from before step {onset} and continue with "
    for cause in causes:
        if not is_lost and cause.settings and cause.settings.keys() <= situation.live.keys():
            return _set_live(cause, cause.settings, situation)
        own = cause.settings if situation.has_own_keys else {}
        names = {**dict.fromkeys(own), **terms}
        typed = [f"`{names[k] or k}={shown(v)}`" for k, v in cause.settings.items() if k in names]
        is_said = typed and len(typed) == len(cause.settings)
        how = " and ".join(typed) if is_said else cause.instead
        how = others.get(_pairs(cause.settings), how)
        if how:
            text = f"{back or 'Continue with '}{how}. {cause.why}"
            return Action(text=text, settings=dict(cause.settings), why=_rests_on(cause))
    tried = (row for row in tried_for(rule.name) if row.is_shown)
    helps = next((row for row in tried if _names(row.treatment, situation.trainer)), None)
    if back and helps is not None:
        names_there = _names(helps.treatment, situation.trainer)
        text = f"{back}{helps.treatment.label} ({names_there}). {helps.treatment.why}"
        return Action(text=f"{text} {helps.words}", why=helps.treatment.why, rate=helps.words)
    read = _read(rule, causes, situation)
    if not back or rule.name not in STEP_RULES or any(c.is_task or c.look for c in causes):
        return read
    name = f" (`{terms['optim.lr']}`)" if "optim.lr" in terms else ""
    trial = f"As a trial only, {_lowered(back)}a third of the learning rate{name}."
    return replace(read, text=f"{read.text} {trial}", is_trial=True)


def _names(chosen: Treatment, trainer: str) -> str:
    """What another trainer calls the settings of a treatment; empty if it lacks one of them."""
    terms = TERMS.get(trainer, {})
    ours = _pairs({change.key: change.aim for change in chosen.changes})
    if ours in (others := _IN_OTHER_VALUES.get(trainer, {})):
        return others[ours]
    keys = [change.key for change in chosen.changes]
    return ", ".join(f"`{terms[key]}`" for key in keys) if set(keys) <= terms.keys() else ""


def _lowered(text: str) -> str:
    return text[:1].lower() + text[1:]
