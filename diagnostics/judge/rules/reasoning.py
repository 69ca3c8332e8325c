"""Rules about what the policy writes: format, templates, entropy, loops, length."""

from __future__ import annotations

import math

from echoscope.store.records import AlarmSeverity

from ..claims import Independent
from .base import Finding, Rule, Sign, View, describe, describe_jump, first, onset_of, sentence

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
        words += f"; {describe(view.success)}" if lost else f"; {_holding(view)}"
    main = first([*dependence, *retrieval])
    return Finding(
        severity=AlarmSeverity.CRITICAL if lost else AlarmSeverity.WARNING,
        main=main,
        agreeing=tuple(channel for channel in found if channel is not main),
        words=words,
        meaning=_meaning(view),
    )


def _meaning(view: View) -> str:
    """What is left of the dependence: none only where no measure finds any worth the name."""
    margins = [view.channels[name] for name in _RETRIEVAL]
    if any(margin.count and margin.value > LEAST_MARGIN for margin in margins):
        return _LESS
    return _ALIKE if _is_alike(view) else _NOT_ALIKE


_ALIKE = (
    "The reasoning no longer depends on the prompt: nearly the same text is written whatever the "
    "task shows."
)
_LESS = (
    "The reasoning depends much less on the prompt than it did: the right prompt is seldom "
    "recognised from it."
)
_NOT_ALIKE = (
    "The reasoning no longer depends on the prompt: the text still varies, but not with the task."
)
LEAST_MARGIN = 0.05
"""Above chance, of recognised prompts: with less, nothing is left of a dependence."""
ALIKE_SHARE = 0.3
"""Share of template phrases, or of near duplicates, from which replies are nearly the same."""
INDEPENDENT_STEPS = 5
"""Measured steps at chance from the start after which replies count as independent."""
MOST_ABOVE_CHANCE = 0.15
"""Share of them that a test at 5 % may find above chance by accident."""


def _is_alike(view: View) -> bool:
    """Do many phrases or whole replies repeat, as far as that is measured?"""
    shares = [view.channels[name] for name in ("template", "duplicates")]
    measured = [share.level for share in shares if share.count]
    return not measured or max(measured) >= ALIKE_SHARE


def independence(view: View) -> Independent | None:
    """Replies that depend on the prompt in no measured step, from the start.

    By the model where it was asked, else by the wording.
    """
    measures = (view.channels[name] for name in _RETRIEVAL)
    margin = next((m for m in measures if m.count), None)
    if margin is None or margin.count < INDEPENDENT_STEPS:
        return None
    above = sum(value > 0 for _, value in margin.history)
    if above > MOST_ABOVE_CHANCE * len(margin.history) or margin.value > 0:
        return None
    return Independent(since=None, is_alike=_is_alike(view), num_points=margin.count)


def _prompt_independent(view: View) -> Finding | None:
    claim = independence(view)
    if claim is None:
        return None
    margin = next(m for name in _RETRIEVAL if (m := view.channels[name]).count)
    alike = "nearly the same text is written" if claim.is_alike else "the text varies"
    return Finding(
        severity=AlarmSeverity.WARNING,
        main=margin,
        words=f"the prompt could not be told from the reasoning above chance in "
        f"{sum(value <= 0 for _, value in margin.history)} of {len(margin.history)} "
        f"measured steps; {alike}",
    )


def _holding(view: View) -> str:
    """What holds while the alarm is a warning: success, or a return that is no success rate."""
    success = view.success
    assert success is not None
    fallen = view.is_success_declining
    return f"{describe(success)}{', too early to confirm it' if fallen else ''}"


def _broke_first(view: View, found: list[Sign]) -> bool:
    """Replies lost their form before: then they depend on nothing, template or not."""
    broken = view.raised(*_PARSING, *_ACTING)
    return bool(broken) and onset_of(broken) <= onset_of(found)


def _low_entropy(view: View) -> list[Sign]:
    return view.raised("entropy_down", "conditional_entropy_down", "sibling_distance_down")


def _is_entropy_low(view: View) -> bool:
    """Of the reasoning itself where that is known, else of all tokens."""
    known = view.channels["conditional_entropy_down"]
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
    entropy = view.channels["entropy_up"]
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
        advice="First read three broken replies, beside replies from before the change: they show "
        "whether replies are cut off, loop, or lost their tags.",
        refuted_by="the rate returns to within 10 points of its best on the same tasks",
    ),
    Rule(
        name="TEMPLATE_COLLAPSE",
        judge=_template_collapse,
        needs=(*_DEPENDENCE, "text_dependence", *_RETRIEVAL),
        confirms=_SUCCESS,
        title="Template collapse",
        meaning="The reasoning no longer depends on the prompt: nearly the same text is "
        "written whatever the task shows.",
        advice="First compare the reasoning of three prompts, and the rewards within their groups. "
        "If rewards differ where replies do the same, they are noise: use larger groups "
        "(`envs.group_size`).",
        refuted_by="on new prompts, the right prompt is identified clearly above chance, or I(X;Z) "
        "is above half of its best",
    ),
    Rule(
        name="PROMPT_INDEPENDENT",
        judge=_prompt_independent,
        needs=_RETRIEVAL,
        title="Reasoning does not depend on the prompt",
        meaning="From the first measured step on, the right prompt cannot be told from the "
        "reasoning.",
        advice="Read the replies to three different prompts. Check that the prompt holds the task "
        "and is not cut off.",
        refuted_by="on more prompts, the right prompt is identified clearly above chance",
    ),
    Rule(
        name="LOW_ENTROPY_COLLAPSE",
        judge=_low_entropy_collapse,
        needs=("entropy_down", "conditional_entropy_down", "sibling_distance_down"),
        confirms=_SUCCESS,
        title="Low-entropy collapse",
        meaning="The policy writes nearly the same reply each time and no longer explores "
        "better ones.",
        advice="First compare the replies to one prompt from before and after the change: are they "
        "the same, and right? As a trial, raise the upper clip limit (`loss.clip_high`).",
        refuted_by="success rises while entropy stays low (then the policy is converging)",
    ),
    Rule(
        name="ENTROPY_EXPLOSION",
        judge=_entropy_explosion,
        needs=("entropy_up",),
        confirms=(*_SUCCESS, "closed", "action"),
        title="Entropy explosion",
        meaning="The policy has become more random: it is much less certain of each token than it "
        "was.",
        advice="First compare replies from before and after the rise, and the entropy of single "
        "positions: does it rise everywhere, or in one part of the reply?",
        refuted_by="entropy per token falls below 1.4 times its minimum",
    ),
    Rule(
        name="DEGENERATE_TEXT",
        judge=_degenerate_text,
        needs=("loops",),
        confirms=_SUCCESS,
        title="Degenerate text",
        meaning="Replies repeat themselves until they are cut off.",
        advice="Read the looping replies. Check the stop strings and the response limit.",
        refuted_by="the looping replies are valid answers",
    ),
    Rule(
        name="LENGTH_SATURATION",
        judge=_length_saturation,
        needs=("capped",),
        title="Length saturation",
        meaning="Nearly all replies are cut at the length limit.",
        advice="Raise the response limit (`context.max_response_tokens`), or give long replies a "
        "smaller reward. A reply that is cut off loses the answer at its end.",
        refuted_by="replies at the limit are complete",
    ),
    Rule(
        name="REWARD_WITHOUT_REASONING",
        judge=_reward_without_reasoning,
        needs=("agreement",),
        title="Reward without reasoning",
        meaning="Rewards rise although the answers no longer follow from the reasoning.",
        advice="Reward answers that agree with their reasoning, or accept that this task needs no "
        "reasoning.",
        refuted_by="answers change when the reasoning is replaced by another prompt's",
    ),
)
