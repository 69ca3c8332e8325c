"""Rules about the learning signal and the update: reward spread, gradients, KL."""

from __future__ import annotations

from collections.abc import Collection

from echoscope.store.records import AlarmSeverity
from echoscope.text.amounts import number, percent

from .base import Finding, Rule, View, describe, sentence

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
    if not spread.is_raised or view.is_success_at_best:
        return None
    repetition = view.leaning(*_REPETITION)
    critical = bool(repetition) and view.is_success_declining and view.is_warm
    words = sentence([spread, *repetition])
    if not repetition:
        words += "; whether replies repeat themselves is not measured or does not show"
    if view.success is None:
        words += "; without success or reward a solved task looks the same"
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=spread,
        agreeing=tuple(repetition),
        words=words,
    )


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
    words = describe(main) if zero.is_raised else "no group has any reward spread"
    success = view.success
    if success is not None and success.level <= 1e-9:
        words += "; all fail"
    return Finding(severity=AlarmSeverity.WARNING, main=main, words=words)


def _is_excused(view: View, *, has_spread: bool) -> bool:
    """Whether groups agree because the task is solved, as far as one can tell."""
    success = view.success
    if success is None or success.is_rate or has_spread:
        return view.is_success_at_best
    return False


def _gradient_spike(view: View) -> Finding | None:
    """Information; a warning once success or validity moves within ten steps of it."""
    gradient = view.channels["gradient"]
    spiked = gradient.latest_raise_step
    if spiked is None or view.step - spiked > SPIKE_MEMORY:
        return None
    moved = [
        c for c in view.leaning(*_MOVES) if c.onset_step is not None and c.onset_step >= spiked
    ]
    return Finding(
        severity=AlarmSeverity.WARNING if moved else AlarmSeverity.INFO,
        main=gradient,
        agreeing=tuple(moved),
        words=f"{gradient.spec.label} jumped at step {spiked}"
        + (f"; then {sentence(moved)}" if moved else "; nothing else moved so far"),
    )


def _non_finite(view: View) -> Finding | None:
    channel = view.channels["non_finite"]
    if not channel.is_raised:
        return None
    critical = channel.streak >= NON_FINITE_STEPS
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=channel,
        words="a loss or gradient is not finite"
        + (f", {channel.streak} steps in a row: nothing is learned" if critical else ""),
    )


def _regulariser_dominates(view: View) -> Finding | None:
    ratio = view["regulariser"]
    if not ratio.is_raised:
        return None
    return Finding(severity=AlarmSeverity.WARNING, main=ratio, words=describe(ratio))


def _has_no_regulariser(keys: Collection[str]) -> bool:
    """The loss is logged term by term, and neither entropy nor KL is among them."""
    has_terms = any(key in ("loss/policy", "gradient/policy/all/norm") for key in keys)
    found = ("loss/entropy", "loss/kl", "gradient/entropy/", "gradient/kl/", "gradient/regulariser")
    return has_terms and not any(key.startswith(found) for key in keys)


def _likelihood_decay(view: View) -> Finding | None:
    decay, reward = view["success_logprob"], view.outcomes["reward"]
    if not decay.is_raised or not reward.count or reward.has_fallen:
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=decay,
        words=describe(decay) + " while the reward does not",
    )


def _stale_engine(view: View) -> Finding | None:
    """By the versions that turns carry: an engine of the right version may still compute otherwise,
    which is the next rule's business."""
    staleness = view["staleness"]
    if not staleness.is_raised:
        return None
    lag = number(staleness.shown_level)
    words = f"the weights that sampled lack the last {lag} updates"
    if view["mismatch"].count:
        words += f"; {describe(view['mismatch'])}"
    return Finding(severity=AlarmSeverity.WARNING, main=staleness, words=words)


def _never_says_its_version(keys: Collection[str]) -> bool:
    return "rollout/staleness_mean" not in keys


def _off_policy_drift(view: View) -> Finding | None:
    """Unless old weights explain it."""
    mismatch, ratio = view["mismatch"], view["mismatch_ratio"]
    moved = [channel for channel in (mismatch, ratio) if channel.is_raised]
    if not moved or view["staleness"].is_raised:
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=moved[0],
        agreeing=tuple(moved[1:]),
        words="; ".join(
            describe(channel)
            if channel is mismatch
            else "the trainer's probabilities of the sampled tokens are "
            f"{percent(channel.shown_level)} off the recorded ones on average"
            for channel in moved
        ),
    )


def _kl_drift(view: View) -> Finding | None:
    drift = view["ref_kl"]
    if not drift.is_raised:
        return None
    return Finding(severity=AlarmSeverity.WARNING, main=drift, words=describe(drift))


RULES: tuple[Rule, ...] = (
    Rule(
        name="ECHO_TRAP",
        judge=_echo_trap,
        needs=("spread",),
        confirms=_REPETITION,
        title="Echo trap",
        meaning="All samples of a prompt earn the same reward, so there is nothing left to "
        "learn from, although the task is not solved.",
        advice="Train only on groups whose rewards differ "
        "(`selection.strategy=top_p selection.value=0.9`), and check whether samples of a "
        "group are identical.",
        refuted_by="rewards differ again on harder or easier tasks, or the task is solved",
    ),
    Rule(
        name="STARVED_SIGNAL",
        judge=_starved_signal,
        needs=("zero_spread", "spread"),
        title="Too little learning signal",
        meaning="In most groups all samples earn the same reward, so most rollouts teach nothing.",
        advice="Check the grader first. If all samples fail, use easier tasks. If all succeed, use "
        "harder tasks. If all samples of a group are identical, raise the temperature "
        "(`sampling.temperature`).",
        refuted_by="on a wider range of tasks, rewards differ within groups",
    ),
    Rule(
        name="GRADIENT_SPIKE",
        judge=_gradient_spike,
        needs=("gradient",),
        title="Gradient spike",
        meaning="One update was far larger than those before it. A spike alone is no "
        "collapse: most runs recover.",
        advice="Look at the rollouts of this step. Act only if success or format falls as well.",
        refuted_by="success and format are unchanged ten steps later",
    ),
    Rule(
        name="NON_FINITE",
        judge=_non_finite,
        needs=("non_finite",),
        confirms=("non_finite",),
        title="Non-finite numbers",
        meaning="A loss or a gradient is infinite or not a number: such an update teaches nothing.",
        advice="First check the rewards and log-probabilities of that step for infinite values, "
        "and whether the gradient had grown before.",
        refuted_by="later losses are finite and the step did not change the weights",
    ),
    Rule(
        name="REGULARISER_DOMINATES",
        judge=_regulariser_dominates,
        needs=("regulariser",),
        is_moot=_has_no_regulariser,
        title="The regulariser dominates",
        meaning="The entropy or KL term moves the policy more than the reward does.",
        advice="Lower the entropy or KL coefficient (`loss.entropy_coef`, `loss.kl_coef`), or keep "
        "only groups whose rewards differ.",
        refuted_by="the task gradient grows with the batch size",
    ),
    Rule(
        name="LIKELIHOOD_DECAY",
        judge=_likelihood_decay,
        needs=("success_logprob",),
        title="Likelihood decay",
        meaning="Successful trajectories become less likely although the reward holds, which "
        "often comes before a collapse.",
        advice="First compare successful replies from before and after the change: which of their "
        "tokens became less likely?",
        refuted_by="the log-probability of successful trajectories rises again",
    ),
    Rule(
        name="STALE_ENGINE",
        judge=_stale_engine,
        needs=("staleness",),
        is_moot=_never_says_its_version,
        title="Stale sampler",
        meaning="The sampler plays with older weights than the trainer has, and the update treats "
        "its samples as the trainer's own. That biases the gradient.",
        advice="Sync the sampler's weights before every step. If samples must be older, weigh "
        "them (`off_policy.old_logprobs=trainer off_policy.correction=tis`).",
        refuted_by="the turns of the next step carry the trainer's policy version",
    ),
    Rule(
        name="OFF_POLICY_DRIFT",
        judge=_off_policy_drift,
        needs=("mismatch",),
        title="Off-policy drift",
        meaning="The sampler and the trainer give the same tokens different probabilities.",
        advice="Check the weight sync and the precision of the sampler, and truncate the "
        "importance ratio.",
        refuted_by="the KL is near zero right after a weight sync",
    ),
    Rule(
        name="KL_DRIFT",
        judge=_kl_drift,
        needs=("ref_kl",),
        title="Large KL to the reference",
        meaning="The policy has moved more than one nat per token from its reference.",
        advice="If success rises as well, nothing is wrong. If the policy should stay near its "
        "reference, raise the KL coefficient (`loss.kl_coef`).",
        refuted_by="success rises together with the KL",
    ),
)
