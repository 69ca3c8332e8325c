"""Why it may have happened: causes ordered by what the run itself shows.

A learning rate that rises, an entropy bonus, rewards that differ between siblings that did the
same. The first cause that something can be done about gives the action (`actions.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from echoscope.text.amounts import percent

from ..rules.base import Rule, View
from .situation import History, Situation

SHOWN, LIKELY, POSSIBLE = 2, 1, 0
"""How well a cause is founded: this run's metrics show it, its settings suggest it, it is usual."""
LUCK_SHARE = 0.3
"""Share of the reward differences that actions do not explain from which randomness decides."""
ENTROPY_RISE = 1.3
"""Entropy over its minimum from which a bonus on it is a shown cause."""
RATE_RISE = 1.5
"""Learning rate now over the one at the best success (or at the first step) that is a rise."""
USUAL_RATES = {"tiny": 3e-4, "lora": 1e-4, "": 1e-5}
"""Highest learning rates of the recipes: the shipped policy, adapters, and full larger models."""
MOST_TRAJECTORY_KL = 0.35
"""Nats up to which whole trajectories can be weighted: with normal log-weights the effective sample
is exp(-2 KL), here 50 %."""
LUCK_PARAMS = ("slip",)
"""Parameters of environments that make the world ignore an action."""


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


def causes_of(
    rules: Sequence[Rule], view: View, history: History, situation: Situation
) -> list[Cause]:
    """Likely causes of the alarms of `rules`, those that the run shows first."""
    names: set[str] = {rule.name for rule in rules}
    worst = rules[0].name if rules else ""
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
    other = _other_policy(names, view, history, situation)
    if other is not None:
        if names <= _OTHER_POLICY_RULES:
            return [other]
        shown = [other, *shown] if worst in _OTHER_POLICY_RULES else [*shown, other]
    usual = [Cause(text=text) for rule in rules for text in rule.causes]
    # What a rule usually comes from is left out where the run shows where this came from.
    if shown and shown[0].founded == SHOWN:
        return shown
    if any("optim.lr" in cause.settings for cause in shown):  # with the rate itself, or the same
        usual = [cause for cause in usual if cause.text != _RATE_TOO_HIGH]
    return [*shown, *usual]


_RATE_TOO_HIGH = "the learning rate is too high for this policy"


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
            f"randomness decides much of the reward: {params[0][0]} is {params[0][1]:g}"
            if params
            else ""
        )
    else:
        is_shown = history.luck >= LUCK_SHARE
        text = (
            f"randomness decides much of the reward: {percent(history.luck)} of the reward "
            "variance remains between samples of one task with exactly the same actions"
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


_OTHER_POLICY_RULES = {"STALE_ENGINE", "OFF_POLICY_DRIFT"}
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
            text=_RATE_TOO_HIGH,
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


def _other_policy(
    names: set[str], view: View, history: History, situation: Situation
) -> Cause | None:
    """Why sampler and trainer differ: by the version of its weights, by what it records, or else by
    how it computes."""
    if not names & _OTHER_POLICY_RULES or math.isnan(history.lag):
        return None
    ratio = view["mismatch_ratio"]
    if history.lag >= 1:
        lag = f"{history.lag:.2g} updates" if history.lag > 1 else "1 update"
        text = f"the sampler's weights are {lag} behind the trainer's"
        why = (
            "Then each sample counts by how likely the trainer finds it, whichever weights "
            "sampled it. Syncing the sampler before every step removes the cause."
        )
    elif ratio.is_raised:
        return Cause(
            text="the sampler has the trainer's weights, and records probabilities that it did "
            "not sample with: honest records have a mean ratio of 1",
            founded=SHOWN,
            settings=_unless_set(
                {"off_policy.old_logprobs": "trainer", "off_policy.correction": "none"}, situation
            ),
            why="Then the update does not use the records. In the sampler, check that "
            "log-probabilities are taken after temperature, top_p and top_k.",
        )
    else:
        text = "the sampler has the trainer's weights, and computes other probabilities with them"
        why = (
            "Then each sample counts by how likely the trainer finds it. The same precision and "
            "kernels in both remove the cause."
        )
    fits = not history.trajectory_kl > MOST_TRAJECTORY_KL
    corrected = {
        "off_policy.old_logprobs": "trainer",
        "off_policy.correction": "tis",
        "off_policy.level": "sequence" if fits else "token",
    }
    is_corrected = situation.setting("off_policy.correction") not in (None, "none")
    return Cause(
        text=text,
        founded=SHOWN,
        settings={} if is_corrected else corrected,
        why=why,
    )


def _unless_set(settings: Mapping[str, Any], situation: Situation) -> Mapping[str, Any]:
    """The settings, or none where all of them hold already."""
    held = all(situation.setting(key) == value for key, value in settings.items())
    return {} if held else settings


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
