"""Rules about what the policy writes: format, templates, entropy, loops, length."""

from __future__ import annotations

import math
from operator import attrgetter

from ..claims import Independent
from .base import (
    RATES,
    Finding,
    Rule,
    Sign,
    View,
    describe,
    describe_jump,
    finding,
    first,
    onset_of,
    rule,
    sentence,
    when_raised,
)

_PARSING = ("closed", "format")
_ACTING = ("action", "eval_action")
_DEPENDENCE = ("dependence_first", "dependence_all")
_RETRIEVAL = ("retrieval", "text_retrieval")
_LOW_ENTROPY = ("entropy_down", "conditional_entropy_down", "sibling_distance_down")
LEAST_RISE = 0.25
"""Nats per token: an explosion is not counted in hundredths."""


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
    evidence_text = sentence([*raised, *others])
    return finding(main, *others, words=evidence_text, is_critical=critical)


def _format_cliff(view: View) -> Finding | None:
    families = (_PARSING, _ACTING, ("truncated",), ("entropy_up",))
    fallen = [jump for names in families if (jump := view.jumped(*names))]
    channels = [channel for family in fallen for channel in family]
    if len(fallen) < 2 or channels[0].spec.name not in (*_PARSING, *_ACTING) or not view.is_warm:
        return None
    evidence_text = "; ".join(describe_jump(channel) for channel in channels)
    return finding(*channels, words=evidence_text, is_critical=True)


def _template_collapse(view: View) -> Finding | None:
    """Dependence and retrieval are down together while H(Z|X) is not.

    Where nobody measures the dependence, as RAGEN does not, retrieval that is down to chance.
    """
    dependence = view.raised(*_DEPENDENCE, "text_dependence")
    retrieval = view.raised(*_RETRIEVAL)
    template = view.leaning("template")
    signs = [*dependence, *retrieval, *template]
    is_seen = bool(dependence and retrieval) or bool(retrieval and template)
    is_seen |= _is_at_chance(view) and not any(view[name].count for name in _DEPENDENCE)
    if not is_seen or _is_entropy_low(view) or _broke_first(view, [*dependence, *retrieval]):
        return None
    lost = view.is_success_declining and view.is_warm
    evidence_text = sentence(signs)
    if view.success is not None:
        evidence_text += f"; {describe(view.success)}" if lost else f"; {_holding(view)}"
    main = first([*dependence, *retrieval])
    others = (sign for sign in signs if sign is not main)
    return finding(main, *others, words=evidence_text, is_critical=lost, meaning=_meaning(view))


def _is_at_chance(view: View) -> bool:
    """Does the model no longer tell the prompt from the reasoning, which it once did?"""
    margin = view["retrieval"]
    return margin.is_raised and margin.value <= LEAST_MARGIN


def _meaning(view: View) -> str:
    """What is left of the dependence: none only where no measure finds any worth the name."""
    margins = [view.channels[name] for name in _RETRIEVAL]
    if any(margin.count and margin.value > LEAST_MARGIN for margin in margins):
        return _LESS
    return _NO_LONGER + {True: _ALIKE, False: _NOT_ALIKE, None: ""}[_is_alike(view)] + "."


_NO_LONGER = "The reasoning no longer depends on the prompt"
_ALIKE = ": nearly the same text is written whatever the task shows"
_NOT_ALIKE = ": the text still varies, but not with the task"
_LESS = (
    "The reasoning depends much less on the prompt than it did: the right prompt is seldom "
    "recognised from it."
)
LEAST_MARGIN = 0.05
"""Above chance, of recognised prompts: with less, nothing is left of a dependence."""
ALIKE_SHARE = 0.3
"""Share of template phrases, or of near duplicates, from which replies are nearly the same."""
INDEPENDENT_STEPS = 5
"""Measured steps at chance from the start after which replies count as independent."""
MOST_ABOVE_CHANCE = 0.15
"""Share of them that a test at 5 % may find above chance by accident."""


def _is_alike(view: View) -> bool | None:
    """Do many phrases or whole replies repeat? None where that is not measured."""
    shares = [view.channels[name] for name in ("template", "duplicates")]
    measured = [share.level for share in shares if share.count]
    return max(measured) >= ALIKE_SHARE if measured else None


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
    alike = {True: "; nearly the same text is written", False: "; the text varies", None: ""}
    evidence_text = (
        f"the prompt could not be told from the reasoning above chance in "
        f"{sum(value <= 0 for _, value in margin.history)} of {len(margin.history)} "
        f"measured steps{alike[claim.is_alike]}"
    )
    return finding(margin, words=evidence_text)


def _holding(view: View) -> str:
    """What holds while the alarm is a warning: success, or a return that is no success rate."""
    success = view.success
    assert success is not None
    fallen = view.is_success_declining
    return f"{describe(success)}{', too early to confirm it' if fallen else ''}"


def _broke_first(view: View, signs: list[Sign]) -> bool:
    """Replies lost their form before: then they depend on nothing, template or not."""
    broken = view.raised(*_PARSING, *_ACTING)
    return bool(broken) and onset_of(broken) <= onset_of(signs)


def _is_entropy_low(view: View) -> bool:
    """Of the reasoning itself where that is known, else of all tokens."""
    entropy = view.channels["conditional_entropy_down"]
    return entropy.is_raised if entropy.count else view["entropy_down"].is_raised


def _low_entropy_collapse(view: View) -> Finding | None:
    """Low entropy is no collapse by itself: success must be flat or falling, and not at its best.

    Where dependence is measured it must be low, too.
    """
    low = view.raised(*_LOW_ENTROPY)
    if not low or view.is_success_reached:
        return None
    if view.success is not None and not (view.is_success_falling or view.is_success_flat(10)):
        return None
    measured = [view[name] for name in (*_DEPENDENCE, *_RETRIEVAL) if view[name].count]
    dependence = view.leaning(*_DEPENDENCE, *_RETRIEVAL)
    if measured and not dependence:
        return None
    lost = view.is_success_declining and view.is_warm
    evidence_text = sentence([*low, *dependence])
    evidence_text += "" if view.success else "; whether success fell cannot be seen"
    return finding(*low, *dependence, words=evidence_text, is_critical=lost)


def _entropy_explosion(view: View) -> Finding | None:
    """Entropy per token is twice its minimum, not only coming back from next to nothing."""
    entropy = view.channels["entropy_up"]
    is_back = entropy.level >= entropy.start - math.log(2)
    is_much = entropy.shown_level - entropy.baseline >= LEAST_RISE
    if not (entropy.is_raised and is_back and is_much):
        return None
    if view.is_success_at_best and entropy.level < entropy.start:
        return None  # it was higher when the run began, and does no harm
    agreeing = [*view.leaning(*_PARSING, *_ACTING), *view.declining_success()]
    critical = bool(agreeing) and view.is_warm_for([entropy])
    return finding(entropy, *agreeing, is_critical=critical)


_DEGENERATE = {
    "loops": ("", ""),
    "empty": ("Reasoning is empty", "Many replies mark a reasoning and say nothing in it."),
    "copied": (
        "Reasoning copies the prompt",
        "Much of the reasoning is copied from the prompt. So it depends on the prompt, and need "
        "not say anything about it.",
    ),
    "echo": (
        "Turns repeat themselves",
        "Much of the reasoning of a turn stood in the turn before.",
    ),
}
"""Ways in which text says nothing: title and meaning, where not those of the rule."""


def _degenerate_text(view: View) -> Finding | None:
    """Text that says nothing. Copies and repetition at the best success may be all it takes."""
    names = [name for name in _DEGENERATE if view.channels[name].is_raised]
    names = [name for name in names if name in ("loops", "empty") or not view.is_success_reached]
    if not names:
        return None
    agreeing = view.leaning(*RATES, *_PARSING, *_ACTING)
    critical = bool(agreeing) and view.is_success_declining and view.is_warm
    others = [view[name] for name in names[1:]]
    title, meaning = _DEGENERATE[names[0]]
    return finding(
        view[names[0]], *others, *agreeing, is_critical=critical, title=title, meaning=meaning
    )


RULES: tuple[Rule, ...] = (
    rule(
        "FORMAT_COLLAPSE",
        _format_collapse,
        needs=("closed", "format", "action", "eval_action"),
        confirms=("truncated", "length", "entropy_up", *RATES, "closed", "action"),
    ),
    rule(
        "TEMPLATE_COLLAPSE",
        _template_collapse,
        needs=(*_DEPENDENCE, "text_dependence", *_RETRIEVAL),
        confirms=RATES,
    ),
    rule("PROMPT_INDEPENDENT", _prompt_independent, needs=_RETRIEVAL),
    rule(
        "LOW_ENTROPY_COLLAPSE",
        _low_entropy_collapse,
        needs=_LOW_ENTROPY,
        confirms=RATES,
    ),
    rule(
        "ENTROPY_EXPLOSION",
        _entropy_explosion,
        needs=("entropy_up",),
        confirms=(*RATES, "closed", "action"),
    ),
    rule("DEGENERATE_TEXT", _degenerate_text, needs=("loops",), confirms=RATES),
    rule("LENGTH_SATURATION", when_raised("capped"), needs=("capped",)),
    rule(
        "REWARD_WITHOUT_REASONING",
        when_raised(
            "agreement",
            " while success is at its best",
            if_so=attrgetter("is_success_at_best"),
        ),
        needs=("agreement",),
    ),
)
