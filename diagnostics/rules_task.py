"""Rules about what the run achieves: success lost, solved, or never there."""

from __future__ import annotations

from ..store.records import AlarmSeverity, CommandAction
from .changes import HALF
from .rules import FIXED, Finding, Rule, View, describe, sentence

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
TRIALS_FOR_LOW = 3 / LOW_RATE
"""Without a single success, a rate of `LOW_RATE` is ruled out with 95 % (rule of three)."""
SOLVED_RATE = 0.95


def _low_success(view: View) -> Finding | None:
    """Success three eighths below its peak, or more, and no way back; or never off the ground."""
    lost = view.raised(*FIXED, "success_train", "reward")
    if lost:
        fixed = [channel for channel in lost if channel.spec.name in FIXED]
        drawn = view.leaning("success_train", "reward")
        others = drawn or view.leaning(*_SIGNS)
        is_now = any(channel.strength >= HALF for channel in fixed)
        critical = is_now and bool(others) and view.is_warm
        main = fixed[0] if fixed else lost[0]
        return Finding(
            severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
            main=main,
            agreeing=tuple(channel for channel in others if channel is not main),
            words=sentence([main, *others]),
        )
    for name in FIXED:
        channel = view[name]
        is_enough = channel.count >= 5 and channel.count * channel.num_trials >= TRIALS_FOR_LOW
        if is_enough and channel.high < LOW_RATE:
            return Finding(
                severity=AlarmSeverity.WARNING,
                main=channel,
                words=f"{channel.spec.label} never reached {LOW_RATE:g} in {channel.count} "
                "measurements",
            )
    return None


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
        words=f"{describe(lost[0])}, while training success stays at {train.level:.3g}",
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
        words=f"{state}: {success.spec.label} is {success.shown_level:.3g}, at its best; "
        + sentence(calm),
    )


def _stalled(view: View) -> Finding | None:
    success = view.success
    if success is None or not view.is_success_flat(STALLED_STEPS) or view.is_success_falling:
        return None
    return Finding(
        severity=AlarmSeverity.INFO,
        main=success,
        words=f"{success.spec.label} has not been better than {success.high:.3g} since step "
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
        title="Success is lost",
        causes=(
            "the policy changed for the worse: see what else moved",
            "the tasks or the grader changed",
        ),
        advice="Resume from the checkpoint nearest the peak; compare rollouts from before and "
        "after the fall.",
        refuted_by="success on a fixed set of tasks back near its peak",
        action=CommandAction.STOP,
    ),
    Rule(
        name="TRAIN_EVAL_DIVERGENCE",
        judge=_train_eval_divergence,
        needs=FIXED,
        title="Training and evaluation disagree",
        causes=(
            "evaluation samples otherwise than training does",
            "the evaluator is broken",
        ),
        advice="Compare sampling settings (temperature, length cap, prompt) of both, and suspect "
        "the evaluator before the policy.",
        refuted_by="the same success when evaluation samples as training does",
    ),
    Rule(
        name="CONVERGED",
        judge=_converged,
        needs=("success_probe", "success_eval", "success_train", "reward"),
        title="Converged",
        advice="Nothing left to learn here: stop, or move to harder tasks.",
        refuted_by="a new peak of success",
    ),
    Rule(
        name="STALLED",
        judge=_stalled,
        needs=("success_probe", "success_eval", "success_train", "reward"),
        title="No progress",
        advice="Look at the reward spread within groups and at what the failures have in common.",
        refuted_by="a new peak of success",
    ),
    Rule(
        name="EMPTY_SELECTION",
        judge=_empty_selection,
        needs=("empty_selection",),
        title="Nothing is selected",
        causes=("all groups are solved, or all are hopeless",),
        advice="Tasks are all solved or all hopeless for this policy: change their difficulty, or "
        "set selection.strategy=none.",
        refuted_by="groups with reward spread",
        action=CommandAction.SET,
        settings={"selection.strategy": "none"},
    ),
)
