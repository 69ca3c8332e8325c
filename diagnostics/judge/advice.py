"""What to do about what the alarms found: one action that fits this run, and why.

Causes are ordered by what the run itself shows: a learning rate that rises, an entropy bonus,
rewards that differ between siblings that did the same. The first cause that something can be done
about gives the action, as a command that works in the run's present state. A live run that is
only to be watched is given a `set`, if the setting is live and its value differs; a run that has
ended or collapsed is branched from the last good checkpoint, because weights that are lost do not
come back by a setting. A metrics file of another trainer is given a sentence in that trainer's
terms.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from echoscope.store.records import Alarm, Command, CommandAction
from echoscope.text.amounts import percent

from .rules.base import Rule, View

Verb = Literal["set", "branch", "none"]

SHOWN, LIKELY, POSSIBLE = 2, 1, 0
"""How well a cause is founded: this run's metrics show it, its settings suggest it, it is usual."""
LUCK_SHARE = 0.3
"""Share of the reward differences that actions do not explain from which luck decides."""
ENTROPY_RISE = 1.3
"""Entropy over its minimum from which a bonus on it is a shown cause."""
RATE_RISE = 1.5
"""Learning rate now over the one at the best success (or at the first step) that is a rise."""
USUAL_RATES = {"tiny": 3e-4, "lora": 1e-4, "": 1e-5}
"""Highest learning rates of the recipes: the shipped policy, adapters, and full larger models."""
TASK_MUST_CHANGE = "No trainer setting cures this; the task must change. "
NEAR_BEST = 0.7
"""Share of the best evaluation success below which advice says that a checkpoint is far from it."""
LUCK_PARAMS = ("slip",)
"""Parameters of environments that make the world ignore an action."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """What advice has to know of a run beside its metrics."""

    kind: Literal["live", "ended", "foreign"] = "foreign"
    run: str = "RUN"
    """How a command names the run, as a shell reads it."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """As it was at the start, nested; empty where it is not known."""
    live: Mapping[str, Any] = field(default_factory=dict)
    """Live settings by dotted key, as they are now."""
    checkpoints: tuple[int, ...] | None = None
    """Steps of those that are left; None where that is not known, and a command chooses."""
    success: Mapping[int, float] = field(default_factory=dict)
    """Evaluation step to success."""
    trainer: str = ""
    """Who wrote a foreign file, where its columns tell: `verl` or `trl`."""

    def setting(self, key: str) -> Any:
        """The value at a dotted key; None where there is none."""
        if key in self.live:
            return self.live[key]
        value: Any = self.config
        for part in key.split("."):
            if isinstance(value, Sequence) and not isinstance(value, str) and part.isdigit():
                value = value[int(part)] if int(part) < len(value) else None
            else:
                value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str) -> float:
        value = self.setting(key)
        return float(value) if isinstance(value, int | float) else math.nan

    @property
    def tasks(self) -> list[Mapping[str, Any]]:
        found = self.setting("envs.train")
        return [one for one in found if isinstance(one, Mapping)] if found else []


@dataclass(slots=True, kw_only=True)
class History:
    """What advice remembers of a run's metrics that no channel follows."""

    first_rate: float = math.nan
    rate_at_best: float = math.nan
    """Learning rate when success was last at its best."""
    rate: float = math.nan
    luck: float = math.nan
    """Moving average of `reward/luck_frac`."""

    def observe(self, view: View, values: Mapping[str, float]) -> None:
        rate, luck = values.get("optim/lr", math.nan), values.get("reward/luck_frac", math.nan)
        if math.isfinite(rate):
            self.first_rate = rate if math.isnan(self.first_rate) else self.first_rate
            self.rate = rate
            if view.is_success_at_best:
                self.rate_at_best = rate
        if math.isfinite(luck):
            self.luck = luck if math.isnan(self.luck) else 0.9 * self.luck + 0.1 * luck


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """Why it may have happened, and what would take the cause away."""

    text: str
    founded: int = POSSIBLE
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that take it away; empty where none does."""
    why: str = ""
    """Why that should help, as a sentence."""
    is_task: bool = False
    """The task must change, not the training: no setting of the trainer cures."""


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


def causes_of(
    rules: Sequence[Rule], view: View, history: History, situation: Situation
) -> list[Cause]:
    """Likely causes of the alarms of `rules`, those that the run shows first."""
    names: set[str] = {rule.name for rule in rules}
    if not names or names <= {"CONVERGED", "STALLED", "GRADIENT_SPIKE"}:
        return []
    found: list[Cause | None] = []
    if "NOT_LEARNING" in names:
        found += _never_learned(view, situation)
    else:
        found += [
            _entropy_bonus(view, situation),
            _learning_rate(names, history, situation),
            _luck(history, situation),
            _regulariser(names, situation),
            _unrewarded_format(names, situation),
            _short_budget(names, view, situation),
            _narrow_clip(names, situation),
            _no_selection(names, view, situation),
        ]
    shown = sorted((one for one in found if one), key=lambda cause: -cause.founded)
    usual = [Cause(text=text) for rule in rules for text in rule.causes]
    # What a rule usually comes from is left out where the run shows where this came from.
    if shown and shown[0].founded == SHOWN:
        return shown
    return [*shown, *usual]


def advise(
    rules: Sequence[Rule],
    causes: Sequence[Cause],
    alarms: Sequence[Alarm],
    situation: Situation,
    *,
    is_lost: bool,
) -> tuple[Action, ...]:
    """The action to take first; none where nothing is wrong.

    Args:
        rules: Of the open alarms, the most serious first.
        alarms: The open alarms, as they stand: they say from which step on nothing is healthy.
        is_lost: The run is collapsing or collapsed.
    """
    if not rules:
        return ()
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


# --- causes, each from what the run shows


def _luck(history: History, situation: Situation) -> Cause | None:
    params = [
        (f"envs.train.{n}.params.{name}", task["params"][name])
        for n, task in enumerate(situation.tasks)
        for name in LUCK_PARAMS
        if isinstance(task.get("params"), Mapping)
        and isinstance(task["params"].get(name), int | float)
        and task["params"][name] > 0
    ]
    if math.isnan(history.luck):
        is_shown = any(value >= 0.5 for _, value in params)
        text = (
            f"luck decides much of the reward: {params[0][0]} is {params[0][1]:g}" if params else ""
        )
    else:
        is_shown = history.luck >= LUCK_SHARE
        text = (
            f"luck decides much of the reward: {percent(history.luck)} of the reward variance "
            "remains between samples of one task with exactly the same actions"
        )
    if not is_shown:
        return None
    if params:
        return Cause(
            text=text,
            founded=SHOWN,
            settings={key: 0 for key, _ in params},
            why="Then moves go where they aim, and reading the prompt pays.",
            is_task=True,
        )
    if situation.setting("advantage.kind") == "grpo":
        return Cause(
            text=text + ", and GRPO's division by the group's reward std favours the safe choice",
            founded=SHOWN,
            settings={"advantage.kind": "rloo"},
            why="RLOO does not divide by the reward std, so a rare large reward keeps its weight.",
        )
    return Cause(text=text, founded=SHOWN, is_task=True)


def _entropy_bonus(view: View, situation: Situation) -> Cause | None:
    coefficient = situation.number("loss.entropy_coef")
    if not coefficient > 0:
        return None
    entropy = view["entropy_up"]
    rise = entropy.shown_level / entropy.baseline if entropy.count else math.nan
    is_shown = rise >= ENTROPY_RISE
    rose = f", and entropy is {rise:.1f} times its minimum" if is_shown else ""
    return Cause(
        text=f"the entropy bonus outweighs the reward: loss.entropy_coef is {coefficient:g}{rose}",
        founded=SHOWN if is_shown else LIKELY,
        settings={"loss.entropy_coef": 0},
        why="Without the bonus only the reward moves the policy.",
    )


_SLOW_RULES = {
    "FORMAT_COLLAPSE",
    "ENTROPY_EXPLOSION",
    "LOW_SUCCESS",
    "NON_FINITE",
    "LIKELIHOOD_DECAY",
    "KL_DRIFT",
    "LOW_ENTROPY_COLLAPSE",
    "TEMPLATE_COLLAPSE",
    "DEGENERATE_TEXT",
}


def _learning_rate(names: set[str], history: History, situation: Situation) -> Cause | None:
    """Too high a learning rate, where something broke that smaller steps would have kept."""
    if not names & _SLOW_RULES:
        return None
    set_to = situation.number("optim.lr")
    now = max((rate for rate in (history.rate, set_to) if rate > 0), default=math.nan)
    if math.isnan(now):
        if situation.kind != "foreign":
            return None
        return Cause(
            text="the learning rate is too high for this policy",
            founded=LIKELY,
            settings={"optim.lr": math.nan},
            why="Smaller steps keep what the policy has learned.",
        )
    early = history.rate_at_best if history.rate_at_best > 0 else history.first_rate
    rise = history.rate / early if early > 0 else math.nan
    usual = _usual_rate(situation)
    lower = min(now, early) if early > 0 else now
    if rise >= RATE_RISE:
        text = f"the learning rate rises: {early:.2g} when success was best, {history.rate:.2g} now"
    elif now > 3 * usual:
        text = f"the learning rate is {now:.2g}; the recipes use {usual:.0e} or less"
    else:
        return Cause(
            text=f"the learning rate ({now:.2g}) is too high for this policy",
            settings={"optim.lr": _rounded(now / 3)},
            why="Smaller steps keep what the policy has learned.",
        )
    target = lower / 10 if lower > usual or math.isinf(usual) else lower / 3
    return Cause(
        text=text,
        founded=SHOWN,
        settings={"optim.lr": _rounded(target)},
        why="Smaller steps keep what the policy has learned.",
    )


def _usual_rate(situation: Situation) -> float:
    if not situation.config:
        return math.inf
    if situation.setting("model.path") == "tiny":
        return USUAL_RATES["tiny"]
    return USUAL_RATES["lora" if situation.setting("model.lora") else ""]


def _rounded(value: float) -> float:
    """One significant digit, downwards.

    >>> _rounded(0.000178), _rounded(1e-4)
    (0.0001, 0.0001)
    """
    if not value > 0 or not math.isfinite(value):
        return value
    scale = 10.0 ** math.floor(math.log10(value) + 1e-9)
    return float(f"{math.floor(value / scale + 1e-9) * scale:.0e}")


def _regulariser(names: set[str], situation: Situation) -> Cause | None:
    if not names & {"REGULARISER_DOMINATES"}:
        return None
    kl = situation.number("loss.kl_coef")
    if not kl > 0:
        return None
    return Cause(
        text=f"the KL penalty outweighs the reward: loss.kl_coef is {kl:g}",
        founded=SHOWN,
        settings={"loss.kl_coef": _rounded(kl / 10)},
        why="A smaller penalty leaves more of each update to the reward.",
    )


def _unrewarded_format(names: set[str], situation: Situation) -> Cause | None:
    tasks = situation.tasks
    if "FORMAT_COLLAPSE" not in names or not tasks:
        return None
    free = [n for n, task in enumerate(tasks) if not task.get("format_penalty", -0.1)]
    if not free or situation.setting("reward.shaping"):
        return None
    return Cause(
        text="nothing penalises a broken reply: format_penalty is 0",
        founded=LIKELY,
        settings={f"envs.train.{n}.format_penalty": -0.1 for n in free},
        why="A penalty makes well-formed replies worth more than broken ones.",
    )


def _short_budget(names: set[str], view: View, situation: Situation) -> Cause | None:
    """Replies ran into the cap when success was still at its best: not loops of a lost policy."""
    truncated = view["truncated"]
    if not names & {"FORMAT_COLLAPSE", "LENGTH_SATURATION"} or not truncated.count:
        return None
    budget = situation.number("context.max_response_tokens")
    was_short = truncated.low >= 0.1
    if not was_short and names != {"LENGTH_SATURATION"}:
        return None
    known = {"context.max_response_tokens": 2 * int(budget)} if budget > 0 else {}
    return Cause(
        text=f"replies are too long for their limit: {percent(truncated.shown_level)} are cut off",
        founded=SHOWN if was_short else LIKELY,
        settings=known,
        why="A reply that is cut off loses the answer at its end.",
    )


def _narrow_clip(names: set[str], situation: Situation) -> Cause | None:
    high = situation.number("loss.clip_high")
    kind = situation.setting("loss.kind")
    if "LOW_ENTROPY_COLLAPSE" not in names or not high < 0.28 or kind == "gspo":
        return None
    return Cause(
        text=f"the upper clip limit is narrow: loss.clip_high is {high:g}",
        founded=LIKELY,
        settings={"loss.clip_high": 0.28},
        why="A wider upper clip lets unlikely replies that succeed become likelier.",
    )


def _no_selection(names: set[str], view: View, situation: Situation) -> Cause | None:
    """Groups without spread train nothing: worth filtering only while some groups have spread."""
    strategy, spread = situation.setting("selection.strategy"), view["spread"]
    if "EMPTY_SELECTION" in names and strategy not in (None, "none"):
        return Cause(
            text=f"the filter selection.strategy={strategy} keeps no group",
            founded=SHOWN,
            settings={"selection.strategy": "none"},
            why="Without the filter every group trains.",
        )
    has_spread = spread.count > 0 and spread.level > 0
    if not names & {"ECHO_TRAP", "TEMPLATE_COLLAPSE"} or strategy != "none" or not has_spread:
        return None
    return Cause(
        text="groups in which all samples earn the same reward take part in every update",
        settings={"selection.strategy": "top_p", "selection.value": 0.9},
        why="Only groups whose rewards differ show which replies are better.",
    )


def _never_learned(view: View, situation: Situation) -> list[Cause | None]:
    hint, instructions = (
        situation.setting(f"context.{name}") for name in ("format_hint", "instructions")
    )
    rates = [view[name] for name in ("format", "action") if view[name].count]
    worst = min((channel.shown_level for channel in rates), default=math.nan)
    is_unread = worst < 0.5
    found: list[Cause | None] = []
    if is_unread and (hint is False or instructions is False):
        found.append(
            Cause(
                text="the prompt does not say how to reply, and only "
                f"{percent(worst)} of the replies can be used",
                founded=SHOWN,
                settings={"context.instructions": True, "context.format_hint": True},
                why="A model that does not know the format and the actions cannot earn a reward.",
            )
        )
    elif is_unread:
        found.append(
            Cause(
                text=f"only {percent(worst)} of the replies can be used: the policy does not know "
                "the format; warm-start it on demonstrations (`echoscope sft generate`)",
                founded=SHOWN,
            )
        )
    elif rates:
        found.append(
            Cause(
                text="replies are well formed, but the tasks are too hard for this policy, or the "
                "grader rejects everything",
                founded=SHOWN,
                is_task=True,
            )
        )
    return found


# --- actions without a setting, and in other trainers' terms


def _read(rule: Rule, causes: Sequence[Cause], situation: Situation) -> Action:
    is_task = any(cause.is_task for cause in causes[:1])
    return Action(
        text=(TASK_MUST_CHANGE * is_task) + rule.advice,
        verb="none",
        why=rule.advice,
        can_cure=not is_task,
    )


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
