"""Rules about what the run achieves: success lost, solved, or never there."""

from __future__ import annotations

import math
from collections.abc import Sequence

from echoscope.store.records import AlarmSeverity
from echoscope.text.amounts import percent

from ..courses.changes import HALF, NOISE_SIGMAS, SURE_SIGMAS, Channel
from ..courses.channels import REWARD_AS_SUCCESS
from .base import FIXED, SOLVED_RATE, Finding, Rule, View, amount, describe, sentence

_SIGNS = (
    "closed",
    "format",
    "action",
    "eval_action",
    "entropy_up",
    "spread",
    "dependence_first",
    "dependence_all",
    "retrieval",
    "text_retrieval",
    "template",
    "duplicates",
    "sibling_distance_down",
    "loops",
)
"""What else may agree that success on fixed tasks is lost: training may be on other tasks."""
FLAT_STEPS = 30
"""Steps without a new peak after which a run counts as flat."""
STALLED_STEPS = 100
LOW_RATE = 0.01
NOTHING = 1e-9
TRIALS_FOR_LOW = 3 / LOW_RATE
"""Without a single success, a rate of `LOW_RATE` is ruled out with 95 % (rule of three)."""


def _low_success(view: View) -> Finding | None:
    """Success three eighths below its peak, or more, and no way back.

    A fall on fixed tasks that chance does not explain is a warning at once. It is critical when two
    other kinds of signs agree; one is enough where the fall is deep and beyond chance, by itself or
    together with that of training success. Where no fixed tasks are measured, it is critical once
    success in training fell to next to nothing, further than chance explains.
    """
    lost = view.raised(*FIXED, "success_train", "reward")
    if not lost:
        return _success_dropped(view)
    fixed = [channel for channel in lost if channel.spec.name in FIXED]
    drawn = view.leaning("success_train", "reward")
    others = drawn or view.leaning(*_SIGNS)
    is_now = any(channel.strength >= HALF for channel in fixed)
    is_sure = _sigmas(fixed, drawn) >= SURE_SIGMAS
    is_agreed = bool(others) and (is_sure or _num_kinds([*drawn, *view.leaning(*_SIGNS)]) > 1)
    is_gone = bool(view.success_at_nothing(NOISE_SIGMAS))
    critical = ((is_now and is_agreed) or is_gone) and view.is_warm
    main = fixed[0] if fixed else lost[0]
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=main,
        agreeing=tuple(channel for channel in others if channel is not main),
        words=sentence([main, *others]),
    )


def _success_dropped(view: View) -> Finding | None:
    """Beyond chance below the best on fixed tasks, but not yet by three eighths of it."""
    dropped = [view[name] for name in FIXED if view[name].has_dropped]
    if not dropped:
        return None
    signs = view.leaning(*_SIGNS)
    is_half_way = any(c.strength >= HALF and math.isfinite(c.num_trials) for c in dropped)
    critical = is_half_way and len(signs) > 1 and view.is_warm
    agreeing = signs if critical else []
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=dropped[0],
        agreeing=(*dropped[1:], *agreeing),
        words=sentence([*dropped, *agreeing]),
    )


def _sigmas(fixed: Sequence[Channel], drawn: Sequence[Channel]) -> float:
    """Standard errors by which success fell: on fixed tasks, or there and in training together.

    The two are played on other tasks, so their errors are independent (Stouffer's sum).
    """
    alone = max((channel.sigmas for channel in fixed), default=0.0)
    training = max((channel.noise_sigmas for channel in drawn), default=0.0)
    return max(alone, (alone + training) / math.sqrt(2))


_SAME_KIND = {
    "closed": "format",
    "eval_action": "action",
    "text_retrieval": "retrieval",
    "dependence_all": "dependence_first",
    "reward": "success_train",
}
"""Channels that measure the same thing in two ways count once."""


def _num_kinds(channels: Sequence[Channel]) -> int:
    return len({_SAME_KIND.get(c.spec.name, c.spec.name) for c in channels})


def _not_learning(view: View) -> Finding | None:
    """No success ever, in so many episodes that a rate of `LOW_RATE` is ruled out.

    A return that rises is learning, until the episodes alone speak against it.
    """
    spread, reward, train = view["spread"], view["reward"], view["success_train"]
    fixed = [view[name] for name in FIXED if view[name].count]
    measured = [*fixed, *([train] if train.count else [])]
    if not measured and spread.count:
        never = spread.count >= spread.spec.warmup and spread.high <= NOTHING
        if not never or reward.high - reward.low > NOTHING:
            return None
        words = f"all {spread.count} steps gave every sample of a group the same reward"
        return Finding(severity=AlarmSeverity.WARNING, main=spread, words=words)
    if not measured:
        if not _is_never_rewarded(reward, train.spec.warmup):
            return None
        words = f"the mean reward was {reward.level:.3g} in all {reward.count} measurements"
        return Finding(severity=AlarmSeverity.WARNING, main=reward, words=words)
    if any(not channel.peak < LOW_RATE for channel in measured):
        return None
    is_certain = any(c.count >= 5 and c.count * c.num_trials >= TRIALS_FOR_LOW for c in fixed)
    is_nothing = all(channel.peak <= 0 for channel in measured)
    is_likely = train.count >= train.spec.warmup and is_nothing and not _is_rising(reward)
    if not (is_certain or is_likely):
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=measured[0],
        agreeing=tuple(measured[1:]),
        words="; ".join(
            f"{channel.spec.label} never reached {LOW_RATE:.0%} in {channel.count} measurements"
            for channel in measured
        ),
    )


def _is_never_rewarded(reward: Channel, least: int) -> bool:
    """The mean reward is the same at every step: negative, or 0 where 0 means failure.

    A reward is the only sign of success in many files of other trainers. The same value above 0
    may be a solved task. A return of 0 may be an import that holds no rewards.

    Args:
        least: Measurements that it takes.
    """
    is_nothing = reward.peak <= 0 if reward.key == REWARD_AS_SUCCESS else reward.peak < 0
    return reward.count >= least and is_nothing and reward.high - reward.low <= NOTHING


def _is_rising(reward: Channel) -> bool:
    """The mean return is above its start by more than its noise."""
    error = reward.noise
    return error > 0 and reward.level - reward.start > NOISE_SIGMAS * error


def _train_eval_divergence(view: View) -> Finding | None:
    """Evaluation is lost for so long that training, a mean over some steps, would show it."""
    train = view["success_train"]
    since = view.step - train.spec.window
    lost = [c for c in view.raised(*FIXED) if c.raised_step is not None and c.raised_step <= since]
    if not lost or train.count < train.spec.warmup or not train.level >= 0.8 * train.high > 0:
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=lost[0],
        agreeing=(train,),
        words=f"{describe(lost[0])}, while training success stays at {percent(train.level)}",
    )


def _converged(view: View) -> Finding | None:
    """Success flat at its best, and little left that could move it: a statement, not an alarm."""
    success = view.success
    if success is None or not view.is_success_at_best or not view.is_warm:
        return None
    calm = view.raised("entropy_down", "spread", "zero_spread")
    is_solved = success.spec.name != "reward" and success.level >= SOLVED_RATE
    if not (calm and (is_solved or view.is_success_flat(FLAT_STEPS))):
        return None
    state = "solved" if is_solved else "converged"
    return Finding(
        severity=AlarmSeverity.INFO,
        main=success,
        agreeing=tuple(calm),
        words=f"{state}; {success.spec.label}: "
        f"{amount(success.shown_level, success.spec.unit)}, at its best; " + sentence(calm),
    )


def _stalled(view: View) -> Finding | None:
    success = view.success
    if success is None or not view.is_success_flat(STALLED_STEPS) or view.is_success_falling:
        return None
    return Finding(
        severity=AlarmSeverity.INFO,
        main=success,
        words=f"{success.spec.label} has not been better than "
        f"{amount(success.high, success.spec.unit)} since step "
        f"{success.high_step}",
    )


def _empty_selection(view: View) -> Finding | None:
    empty = view["empty_selection"]
    if not empty.is_raised:
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=empty,
        words=f"no group was selected for {empty.streak} steps in a row: nothing trains",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="LOW_SUCCESS",
        judge=_low_success,
        needs=(*FIXED, "success_train", "reward"),
        confirms=FIXED,
        confirms_alone=("success_train",),
        title="Success dropped",
        meaning="The policy solves fewer tasks than it did before.",
        causes=(
            "the policy became worse (the other alarms and the evidence show how)",
            "the tasks or the grader changed",
        ),
        advice="Compare rollouts from before and after the drop. Then branch from the checkpoint "
        "nearest the best evaluation.",
        refuted_by="success on fixed tasks returns to near its best",
    ),
    Rule(
        name="NOT_LEARNING",
        judge=_not_learning,
        needs=(*FIXED, "success_train", "spread", "reward"),
        title="Not learning",
        meaning="No episode has succeeded so far, so there is no reward to learn from.",
        causes=(
            "no reply earns a reward, because the policy does not know the format or the actions",
            "the tasks are too hard for this policy",
            "the grader rejects everything",
        ),
        advice="Read some replies and check the grader. Then show the policy the format "
        "(`context.format_hint=true`), warm-start it on demonstrations "
        "(`echoscope sft generate`), or use easier tasks.",
        refuted_by="any task succeeds once",
    ),
    Rule(
        name="TRAIN_EVAL_DIVERGENCE",
        judge=_train_eval_divergence,
        needs=FIXED,
        title="Training and evaluation disagree",
        meaning="Success falls in evaluation but not in training.",
        causes=(
            "evaluation uses other sampling settings than training",
            "the evaluator is broken",
        ),
        advice="Compare the sampling settings of both (temperature, length limit, prompt). Check "
        "the evaluator first, then the policy.",
        refuted_by="success is equal once evaluation uses the sampling settings of training",
    ),
    Rule(
        name="CONVERGED",
        judge=_converged,
        needs=("success_probe", "success_eval", "success_train", "reward"),
        title="Converged",
        meaning="Success is at its best and stays there.",
        advice="Stop the run, or continue on harder tasks.",
        refuted_by="a new peak of success",
    ),
    Rule(
        name="STALLED",
        judge=_stalled,
        needs=("success_probe", "success_eval", "success_train", "reward"),
        title="No progress",
        meaning="Success has not improved for a long time.",
        advice="Look at the reward spread within groups. Read failed replies side by side.",
        refuted_by="a new peak of success",
    ),
    Rule(
        name="EMPTY_SELECTION",
        judge=_empty_selection,
        needs=("empty_selection",),
        title="Nothing is selected",
        meaning="The filter selects no group, so nothing trains.",
        causes=("in every group all samples succeed, or all fail",),
        advice="Use harder tasks if all samples succeed and easier ones if all fail. To train on "
        "every group, set `selection.strategy=none`.",
        refuted_by="rewards differ within some groups",
    ),
)
