"""Rules about the learning signal and the update: reward spread, gradients, KL."""

from __future__ import annotations

from collections.abc import Collection

from echoscope.text.amounts import number, percent

from .base import MOSTLY_SOLVED, Finding, Rule, View, describe, finding, rule, sentence, when_raised

_REPETITION = ("duplicates", "loops", "echo", "sibling_distance_down")
_MOVES = ("success_probe", "success_eval", "success_train", "closed", "format", "action")
SPIKE_MEMORY = 10
"""Steps in which a spike is followed by damage, if it is."""
NON_FINITE_STEPS = 3
NO_SPREAD = 1e-9
"""A spread within groups so small is none."""


def _echo_trap(view: View) -> Finding | None:
    """Reward spread is gone, success is not at its best; repetition confirms it."""
    spread = view.channels["spread"]
    if not spread.is_raised or view.is_success_reached:
        return None
    repetition = view.leaning(*_REPETITION)
    critical = bool(repetition) and view.is_success_declining and view.is_warm
    evidence_text = sentence([spread, *repetition])
    if not repetition:
        evidence_text += "; whether replies repeat themselves is not measured or does not show"
    if view.success is None:
        evidence_text += "; without success or reward a solved task looks the same"
    return finding(spread, *repetition, words=evidence_text, is_critical=critical)


def _starved_signal(view: View) -> Finding | None:
    """Nearly all groups agree on their reward, and not because the task is solved.

    Success at its best excuses that. A mean return has no known highest value, so it excuses only
    while some group still has spread: of a return that can move no more, the last value is always
    its best.
    """
    zero, spread = view["zero_spread"], view.channels["spread"]
    never = spread.count >= spread.spec.warmup and spread.level <= NO_SPREAD
    is_starved = zero.is_raised and (zero.strength >= 1 or "STARVED_SIGNAL" in view.open_rules)
    if not (is_starved or never) or _is_excused(view, has_spread=not never and zero.level < 1):
        return None
    main = zero if zero.is_raised else spread
    evidence_text = describe(main) if zero.is_raised else "no group has any reward spread"
    success = view.success
    if success is not None and success.level <= 1e-9:
        evidence_text += "; all fail"
    return finding(main, words=evidence_text)


def _is_excused(view: View, *, has_spread: bool) -> bool:
    """Whether groups agree because the task is solved, as far as one can tell."""
    success = view.success
    if success is not None and success.is_rate:
        # Half of the tasks always solved, and half never, is nothing that was reached.
        is_solved = success.has_risen or success.level >= MOSTLY_SOLVED
        return view.is_success_reached and is_solved
    return has_spread and view.is_success_reached


def _gradient_spike(view: View) -> Finding | None:
    """Information; a warning once success or validity moves within ten steps of it."""
    gradient = view.channels["gradient"]
    spiked = gradient.latest_raise_step
    if spiked is None or view.step - spiked > SPIKE_MEMORY:
        return None
    moved = [
        c for c in view.leaning(*_MOVES) if c.onset_step is not None and c.onset_step >= spiked
    ]
    then = f"; then {sentence(moved)}" if moved else ""
    if not moved and not view.declining_success():
        then = "; neither success nor the form of replies changed so far"
    return finding(
        gradient,
        *moved,
        words=f"{gradient.spec.label} jumped at step {spiked}{then}",
        is_note=not moved,
    )


def _non_finite(view: View) -> Finding | None:
    channel = view.channels["non_finite"]
    if not channel.is_raised:
        return None
    critical = channel.streak >= NON_FINITE_STEPS
    evidence_text = "a loss or gradient is not finite"
    evidence_text += f", {channel.streak} steps in a row: nothing is learned" if critical else ""
    return finding(channel, words=evidence_text, is_critical=critical)


def _has_no_regulariser(keys: Collection[str]) -> bool:
    """The loss is logged term by term, and neither entropy nor KL is among them."""
    has_terms = any(key in ("loss/policy", "gradient/policy/all/norm") for key in keys)
    regularisers = (
        "loss/entropy",
        "loss/kl",
        "gradient/entropy/",
        "gradient/kl/",
        "gradient/regulariser",
    )
    return has_terms and not any(key.startswith(regularisers) for key in keys)


def _reward_holds(view: View) -> bool:
    reward, train = view.outcomes["reward"], view.outcomes["success_train"]
    return reward.count > 0 and not (reward.has_fallen or train.has_fallen)


def _stale_engine(view: View) -> Finding | None:
    """By the versions that turns carry: an engine of the right version may still compute otherwise,
    which is the next rule's business."""
    staleness = view["staleness"]
    if not staleness.is_raised:
        return None
    lag = number(staleness.shown_level)
    evidence_text = f"the weights that sampled lack the last {lag} updates"
    if view["mismatch"].count:
        evidence_text += f"; {describe(view['mismatch'])}"
    return finding(staleness, words=evidence_text)


def _never_says_its_version(keys: Collection[str]) -> bool:
    return "rollout/staleness_mean" not in keys


def _off_policy_drift(view: View) -> Finding | None:
    """Unless old weights explain it."""
    mismatch, ratio = view["mismatch"], view["mismatch_ratio"]
    moved = [channel for channel in (mismatch, ratio) if channel.is_raised]
    if not moved or view["staleness"].is_raised:
        return None
    evidence_text = "; ".join(
        describe(channel)
        if channel is mismatch
        else "the trainer's probabilities of the sampled tokens are "
        f"{percent(channel.shown_level)} off the recorded ones on average"
        for channel in moved
    )
    return finding(*moved, words=evidence_text)


RULES: tuple[Rule, ...] = (
    rule("ECHO_TRAP", _echo_trap, needs=("spread",), confirms=_REPETITION),
    rule("STARVED_SIGNAL", _starved_signal, needs=("zero_spread", "spread")),
    rule("GRADIENT_SPIKE", _gradient_spike, needs=("gradient",)),
    rule("NON_FINITE", _non_finite, needs=("non_finite",), confirms=("non_finite",)),
    rule(
        "REGULARISER_DOMINATES",
        when_raised("regulariser"),
        needs=("regulariser",),
        is_moot=_has_no_regulariser,
    ),
    rule(
        "LIKELIHOOD_DECAY",
        when_raised("success_logprob", " while the reward does not", if_so=_reward_holds),
        needs=("success_logprob",),
    ),
    rule("STALE_ENGINE", _stale_engine, needs=("staleness",), is_moot=_never_says_its_version),
    rule("OFF_POLICY_DRIFT", _off_policy_drift, needs=("mismatch",)),
    rule("KL_DRIFT", when_raised("ref_kl"), needs=("ref_kl",)),
)
