"""Rules about what the policy writes: format, templates, entropy, loops, length."""

from __future__ import annotations

import math

from echoscope.store.records import AlarmSeverity

from ..changes import Channel
from .base import Finding, Rule, View, describe, describe_jump, first, onset_of, sentence

_PARSING = ("closed", "format")
_ACTING = ("action", "eval_action")
_DEPENDENCE = ("dependence_first", "dependence_all")
_RETRIEVAL = ("retrieval", "text_retrieval")
LEAST_RISE = 0.25
"""Nats per token: an explosion is not counted in hundredths."""
_SUCCESS = ("success_probe", "success_eval", "success_train")


def _format_collapse(view: View) -> Finding | None:
    """A rate is down 20 points for good; a second family of channels, half way or more, agrees.

    Or two families fall off a cliff at the same step, which no batch does.
    """
    raised = view.raised(*_PARSING, *_ACTING)
    if not raised:
        return _format_cliff(view)
    main = first(raised)
    others = [
        *(view.leaning(*_ACTING) if main.spec.name in _PARSING else view.leaning(*_PARSING)),
        *view.leaning("truncated", "length", "entropy_up"),
        *view.declining_success(),
    ]
    if main.spec.name in _ACTING:
        others += [c for c in raised if c.spec.name in _PARSING and c not in others]
    is_now = any(channel.strength >= 1 for channel in raised)
    critical = bool(others) and is_now and view.is_warm_for(raised)
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=main,
        agreeing=tuple(others),
        words=sentence([*raised, *others]),
    )


def _format_cliff(view: View) -> Finding | None:
    families = (_PARSING, _ACTING, ("truncated",), ("entropy_up",))
    fallen = [found for names in families if (found := view.jumped(*names))]
    channels = [channel for family in fallen for channel in family]
    if len(fallen) < 2 or channels[0].spec.name not in (*_PARSING, *_ACTING) or not view.is_warm:
        return None
    return Finding(
        severity=AlarmSeverity.CRITICAL,
        main=channels[0],
        agreeing=tuple(channels[1:]),
        words="; ".join(describe_jump(channel) for channel in channels),
    )


def _template_collapse(view: View) -> Finding | None:
    """Dependence and retrieval are down together while H(Z|X) is not."""
    dependence = view.raised(*_DEPENDENCE, "text_dependence")
    retrieval = view.raised(*_RETRIEVAL)
    template = view.leaning("template")
    found = [*dependence, *retrieval, *template]
    is_seen_twice = bool(dependence and retrieval) or bool(retrieval and template)
    if not is_seen_twice or _is_entropy_low(view) or _broke_first(view, [*dependence, *retrieval]):
        return None
    lost = view.is_success_declining and view.is_warm
    words = sentence(found)
    if view.success is not None:
        words += f"; {describe(view.success)}" if lost else "; success still holds"
    main = first([*dependence, *retrieval])
    return Finding(
        severity=AlarmSeverity.CRITICAL if lost else AlarmSeverity.WARNING,
        main=main,
        agreeing=tuple(channel for channel in found if channel is not main),
        words=words,
    )


def _broke_first(view: View, found: list[Channel]) -> bool:
    """Replies lost their form before: then they depend on nothing, template or not."""
    broken = view.raised(*_PARSING, *_ACTING)
    return bool(broken) and onset_of(broken) <= onset_of(found)


def _low_entropy(view: View) -> list[Channel]:
    return view.raised("entropy_down", "conditional_entropy_down", "sibling_distance_down")


def _is_entropy_low(view: View) -> bool:
    """Of the reasoning itself where that is known, else of all tokens."""
    known = view["conditional_entropy_down"]
    return known.is_raised if known.count else view["entropy_down"].is_raised


def _low_entropy_collapse(view: View) -> Finding | None:
    """Low entropy is no collapse by itself: success must be flat or falling, and not at its best.

    Where dependence is measured it must be low, too.
    """
    low = _low_entropy(view)
    if not low or view.is_success_at_best:
        return None
    if view.success is not None and not (view.is_success_falling or view.is_success_flat(10)):
        return None
    measured = [view[name] for name in (*_DEPENDENCE, *_RETRIEVAL) if view[name].count]
    dependence = view.leaning(*_DEPENDENCE, *_RETRIEVAL)
    if measured and not dependence:
        return None
    lost = view.is_success_declining and view.is_warm
    agreeing = [*low[1:], *dependence]
    return Finding(
        severity=AlarmSeverity.CRITICAL if lost else AlarmSeverity.WARNING,
        main=low[0],
        agreeing=tuple(agreeing),
        words=sentence([*low, *dependence])
        + ("" if view.success else "; whether success fell cannot be seen"),
    )


def _entropy_explosion(view: View) -> Finding | None:
    """Entropy per token is twice its minimum, not only coming back from next to nothing."""
    entropy = view["entropy_up"]
    is_back = entropy.level >= entropy.start - math.log(2)
    is_much = entropy.shown_level - entropy.baseline >= LEAST_RISE
    if not (entropy.is_raised and is_back and is_much):
        return None
    agreeing = [*view.leaning(*_PARSING, *_ACTING), *view.declining_success()]
    critical = bool(agreeing) and view.is_warm_for([entropy])
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=entropy,
        agreeing=tuple(agreeing),
        words=sentence([entropy, *agreeing]),
    )


def _degenerate_text(view: View) -> Finding | None:
    loops = view["loops"]
    if not loops.is_raised:
        return None
    agreeing = view.leaning(*_SUCCESS, *_PARSING, *_ACTING)
    critical = bool(agreeing) and view.is_success_declining and view.is_warm
    return Finding(
        severity=AlarmSeverity.CRITICAL if critical else AlarmSeverity.WARNING,
        main=loops,
        agreeing=tuple(agreeing),
        words=sentence([loops, *agreeing]),
    )


def _length_saturation(view: View) -> Finding | None:
    capped = view["capped"]
    if not capped.is_raised:
        return None
    return Finding(severity=AlarmSeverity.WARNING, main=capped, words=describe(capped))


def _reward_without_reasoning(view: View) -> Finding | None:
    agreement = view["agreement"]
    if not agreement.is_raised or not view.is_success_at_best:
        return None
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=agreement,
        words=describe(agreement) + " while success is at its best",
    )


RULES: tuple[Rule, ...] = (
    Rule(
        name="FORMAT_COLLAPSE",
        judge=_format_collapse,
        needs=("closed", "format", "action", "eval_action"),
        confirms=("truncated", "length", "entropy_up", *_SUCCESS, "closed", "action"),
        title="Format collapse",
        meaning="Replies no longer have the form that the environment can read, so they earn "
        "nothing.",
        causes=(
            "the learning rate is too high for this policy",
            "nothing rewards the format, or only weakly",
            "replies outgrow the response budget",
        ),
        advice="Read three broken replies. Stop at the step boundary and resume from the last "
        "checkpoint before the onset; then raise the response budget, add or raise a format "
        "reward, or lower the learning rate.",
        refuted_by="the rate back within 10 points of its best on the same tasks",
    ),
    Rule(
        name="TEMPLATE_COLLAPSE",
        judge=_template_collapse,
        needs=(*_DEPENDENCE, "text_dependence", *_RETRIEVAL),
        confirms=_SUCCESS,
        title="Template collapse",
        meaning="The reasoning no longer depends on the prompt: nearly the same text is "
        "written whatever the task shows.",
        causes=(
            "the reward hardly varies within groups, so the regularisers lead",
            "luck decides the reward more than the reply",
            "one reply is right nearly everywhere",
        ),
        advice="Look at three prompts with the same reasoning. Watch while success holds. Train on "
        "groups with reward spread if std/mean of the reward std over groups exceeds 1; where "
        "luck decides the reward, use more siblings per prompt instead.",
        refuted_by="retrieval clearly above chance, or dependence back above half of its best, on "
        "fresh prompts",
    ),
    Rule(
        name="LOW_ENTROPY_COLLAPSE",
        judge=_low_entropy_collapse,
        needs=("entropy_down", "conditional_entropy_down", "sibling_distance_down"),
        confirms=_SUCCESS,
        title="Low-entropy collapse",
        meaning="The policy writes nearly the same reply each time, and no longer finds "
        "better ones.",
        causes=(
            "the upper clip holds back unlikely tokens",
            "too many updates on few groups",
        ),
        advice="Raise the upper clip (clip-higher) or aim at a target entropy; a small entropy "
        "coefficient helps if success is still moving.",
        refuted_by="success rising while entropy stays low: then it is convergence",
    ),
    Rule(
        name="ENTROPY_EXPLOSION",
        judge=_entropy_explosion,
        needs=("entropy_up",),
        confirms=(*_SUCCESS, "closed", "action"),
        title="Entropy explosion",
        meaning="The policy becomes random: each token is less and less certain, and words "
        "dissolve.",
        causes=(
            "the learning rate or the entropy coefficient is too high",
            "the reward no longer tells replies apart",
        ),
        advice="Lower the learning rate or the entropy coefficient, and resume from a checkpoint "
        "before the rise.",
        refuted_by="entropy per token back below 1.4 times its minimum",
    ),
    Rule(
        name="DEGENERATE_TEXT",
        judge=_degenerate_text,
        needs=("loops",),
        confirms=_SUCCESS,
        title="Degenerate text",
        meaning="Replies repeat themselves until they are cut off.",
        causes=(
            "no stop string ends a loop",
            "unlikely tokens carry large gradients",
        ),
        advice="Read the looping replies; check stop strings and the response budget; stop on "
        "repetition.",
        refuted_by="looping replies that are valid answers",
    ),
    Rule(
        name="LENGTH_SATURATION",
        judge=_length_saturation,
        needs=("capped",),
        title="Length saturation",
        meaning="Nearly all replies are cut at the length limit.",
        causes=(
            "the response budget is too small for the task",
            "longer replies are rewarded",
        ),
        advice="Raise the response budget or shape overlong replies; what is cut off cannot be "
        "rewarded for what it would have said.",
        refuted_by="replies at the cap that are complete",
    ),
    Rule(
        name="REWARD_WITHOUT_REASONING",
        judge=_reward_without_reasoning,
        needs=("agreement",),
        title="Reward without reasoning",
        meaning="Rewards rise although the answers no longer follow from the reasoning.",
        causes=("the answer can be had without the reasoning",),
        advice="The answer no longer follows from the reasoning: reward their agreement, or accept "
        "that this task needs no reasoning.",
        refuted_by="answers that change when the reasoning is swapped for another prompt's",
    ),
)
